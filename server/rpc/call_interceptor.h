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

// Every method of our services and of the health service.
std::vector<GrpcMethod> ServedMethods();

// Counts every call of a server, which all arguments must outlive.
// `open` counts those of encrypted connections by client.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>
MakeCallCounter(GrpcMetrics& metrics, OpenCalls& open, const Clock& clock);

}  // namespace cohort
