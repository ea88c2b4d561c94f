#pragma once

#include <grpcpp/security/auth_metadata_processor.h>

#include <memory>

#include "server/access/access_control.h"
#include "server/access/open_calls.h"

namespace cohort {

// Asks `access` and `calls`, which must outlive the server, about every call
// before it reaches a service. For encrypted connections: gRPC calls it for
// those only.
std::shared_ptr<grpc::AuthMetadataProcessor> MakeCallGate(
    AccessControl& access, const OpenCalls& calls);

}  // namespace cohort
