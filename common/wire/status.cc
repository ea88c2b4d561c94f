#include "common/wire/status.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/wire/security.h"

namespace cohort {
namespace {

// absl::StatusCode uses gRPC's numbers.
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

std::optional<std::string> ConnectionFailure(absl::string_view message) {
  if (!absl::StrContains(message, "failed to connect to all addresses") &&
      !absl::StrContains(message, "DNS resolution failed")) {
    return std::nullopt;
  }
  if (auto handshake = HandshakeFailure(message)) return handshake;
  // The system's error text comes last, after addresses and gRPC's own text.
  const size_t colon = message.rfind(": ");
  if (colon != absl::string_view::npos) message.remove_prefix(colon + 2);
  // "error:0A000438:SSL routines::tlsv1 alert internal error".
  const size_t routines = message.find(" routines::");
  if (routines != absl::string_view::npos) {
    message.remove_prefix(routines + absl::string_view(" routines::").size());
    return absl::StrCat("the TLS handshake failed: ", message);
  }
  if (absl::StrContains(message, "http1.x server")) {
    return "it speaks HTTP/1, as an operations port does";
  }
  return std::string(message.data(), message.size());
}

}  // namespace cohort
