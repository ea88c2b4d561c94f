#pragma once

#include <memory>
#include <vector>

#include "common/clock.h"
#include "server/access/open_calls.h"
#include "server/metrics/grpc_metrics.h"

namespace grpc::experimental {
class ServerInterceptorFactoryInterface;
}  // namespace grpc::experimental

namespace cohort {

// The methods that each kind of server serves, with those of the health
// service. The server that coordinates a run serves Admin too, be it at another
// address.
std::vector<GrpcMethod> CoordinatorMethods();
std::vector<GrpcMethod> DataShardMethods();

// Counts every call of a server, which all arguments must outlive.
// `open` counts those of encrypted connections by client.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>
MakeCallCounter(GrpcMetrics& metrics, OpenCalls& open, const Clock& clock);

}  // namespace cohort
