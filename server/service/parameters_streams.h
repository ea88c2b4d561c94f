#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "server/service/shard.h"

// The calls of the Parameters service, each on raw bytes so that payloads are
// never copied. The reactors own themselves.
namespace cohort {

using ByteBidiReactor =
    grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
using ByteWriteReactor = grpc::ServerWriteReactor<grpc::ByteBuffer>;

ByteBidiReactor* StartExchange(Shard& shard,
                               grpc::CallbackServerContext* context);
ByteBidiReactor* StartRegister(Shard& shard,
                               grpc::CallbackServerContext* context);
ByteWriteReactor* StartPull(Shard& shard, grpc::CallbackServerContext* context,
                            const grpc::ByteBuffer& request);

}  // namespace cohort
