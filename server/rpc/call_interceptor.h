#pragma once

#include <memory>
#include <vector>

#include "common/clock.h"
#include "server/metrics/grpc_metrics.h"

namespace grpc::experimental {
class ServerInterceptorFactoryInterface;
}  // namespace grpc::experimental

namespace cohort {

// Every method of our services and of the health service.
std::vector<GrpcMethod> ServedMethods();

// Counts every call of a server. `metrics` and `clock` must outlive the
// server.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>
MakeCallCounter(GrpcMetrics& metrics, const Clock& clock);

}  // namespace cohort
