#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "server/service/shard.h"

// The calls of the Parameters service, each on raw bytes so that payloads are
// never copied. The reactors own themselves.
namespace cohort {

using ByteBidiReactor =
    grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
using ByteWriteReactor = grpc::ServerWriteReactor<grpc::ByteBuffer>;

ByteBidiReactor* StartExchange(Shard& shard);
ByteBidiReactor* StartRegister(Shard& shard);
ByteWriteReactor* StartPull(Shard& shard, const grpc::ByteBuffer& request);

}  // namespace cohort
