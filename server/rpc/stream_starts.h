#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "server/local/local_door.h"
#include "server/rpc/call_counts.h"
#include "server/rpc/services.h"
#include "server/run/run_host.h"

// The streaming calls of the services. They use raw bytes, so that payloads are
// never copied and garbage can be distinguished from the end of a stream. The
// reactors own themselves.
namespace cohort {

using ByteBidiReactor =
    grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
using ByteWriteReactor = grpc::ServerWriteReactor<grpc::ByteBuffer>;

// `local`, which may be null, must outlive the stream; `run` is null at a data
// shard.
ByteBidiReactor* StartSession(RunHost& run, const StreamCall& call,
                              LocalDoor* local);
ByteBidiReactor* StartRegister(RunHost& run, const StreamCall& call);
ByteBidiReactor* StartExchange(PartitionsHost& host, RunHost* run,
                               const StreamCall& call, const LocalDoor* local);
ByteBidiReactor* StartReduce(RunHost& run, const StreamCall& call);
ByteWriteReactor* StartPull(PartitionsHost& host, RunHost* run,
                            grpc::CallbackServerContext* context,
                            const grpc::ByteBuffer& request);

}  // namespace cohort
