#pragma once

#include <memory>
#include <vector>

#include "server/metrics/grpc_metrics.h"
#include "server/rpc/call_counts.h"

namespace grpc::experimental {
class ServerInterceptorFactoryInterface;
}  // namespace grpc::experimental

namespace cohort {

// The methods that each kind of server serves, with those of the health
// service. The server that coordinates a run serves Admin too, be it at another
// address.
std::vector<GrpcMethod> CoordinatorMethods();
std::vector<GrpcMethod> DataShardMethods();

// Counts the calls of a server, which `counts` must outlive, except
// bidirectional streams of known methods, which count themselves (CountedCall).
// Behind an interceptor gRPC 1.51 completes each operation twice, and each
// time another thread may take it.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>
MakeCallCounter(CallCounts& counts);

}  // namespace cohort
