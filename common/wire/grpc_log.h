#pragma once

#include "absl/strings/string_view.h"

namespace cohort {

// Hands everything that gRPC would print to `log`, from any thread, with the
// file and line it comes from. What gRPC tells is up to its GRPC_VERBOSITY:
// by default only what it takes for errors. Call it before gRPC is used.
void RouteGrpcLog(void (*log)(absl::string_view text));

}  // namespace cohort
