#pragma once

#include <grpcpp/support/status.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace cohort {

// The same code and text on the wire. Codes are equal one to one; absl::Status
// payloads are not carried.
grpc::Status ToGrpcStatus(const absl::Status& status);

// The reverse. A code that gRPC does not define becomes Unknown.
absl::Status FromGrpcStatus(const grpc::Status& status);

// The system's error text ("Connection refused") if `message` is gRPC's report
// of a failed connection; nullopt otherwise.
std::optional<std::string> ConnectionFailure(absl::string_view message);

}  // namespace cohort
