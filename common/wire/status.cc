#include "common/wire/status.h"

#include <string>

#include "absl/strings/string_view.h"

namespace cohort {
namespace {

// absl::StatusCode was defined after gRPC's numbers.
static_assert(static_cast<int>(absl::StatusCode::kOk) == grpc::OK);
static_assert(static_cast<int>(absl::StatusCode::kCancelled) ==
              grpc::CANCELLED);
static_assert(static_cast<int>(absl::StatusCode::kAborted) == grpc::ABORTED);
static_assert(static_cast<int>(absl::StatusCode::kUnauthenticated) ==
              grpc::UNAUTHENTICATED);

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const absl::string_view message = status.message();
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      std::string(message.data(), message.size()));
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const int code = static_cast<int>(status.error_code());
  const bool known = code > 0 && code <= grpc::UNAUTHENTICATED;
  return absl::Status(
      known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
      status.error_message());
}

}  // namespace cohort
