#pragma once

#include "absl/strings/string_view.h"

namespace cohort {

// Passes everything that gRPC and protobuf would print to `log`, from any
// thread, with the file and line it comes from. GRPC_VERBOSITY decides what
// gRPC logs: by default only errors. Protobuf prints a line for each text of a
// message that is not UTF-8, so any client could fill the server's log. Call it
// before gRPC is used.
void RouteGrpcLog(void (*log)(absl::string_view text));

// Drops everything that gRPC would print, unless the environment sets
// GRPC_VERBOSITY. For programs that report errors of gRPC by their status only.
void SilenceGrpcLog();

}  // namespace cohort
