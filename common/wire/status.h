#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace cohort {

// The same code and text on the wire. Codes are equal one to one; absl::Status
// payloads are not carried.
grpc::Status ToGrpcStatus(const absl::Status& status);

// The reverse. A code that gRPC does not define becomes Unknown.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace cohort
