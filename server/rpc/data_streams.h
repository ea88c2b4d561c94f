#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <memory>

#include "server/partitions/partitions_host.h"

namespace grpc {
class Service;
}  // namespace grpc

// The services of a data shard in a process of its own. `host` must outlive
// them, and they must outlive the gRPC server.
namespace cohort {

using ByteBidiReactor =
    grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
using ByteWriteReactor = grpc::ServerWriteReactor<grpc::ByteBuffer>;

// For shard 0.
std::unique_ptr<grpc::Service> MakeDataShardsService(PartitionsHost& host);
// For workers: Exchange and Pull.
std::unique_ptr<grpc::Service> MakeDataParametersService(PartitionsHost& host);

}  // namespace cohort
