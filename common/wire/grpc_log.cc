#include "common/wire/grpc_log.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <atomic>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"

namespace cohort {
namespace {

// A global, because gRPC takes a plain function. Set before gRPC's threads
// start.
std::atomic<void (*)(absl::string_view)> grpc_sink = nullptr;

absl::string_view FileName(absl::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

}  // namespace

void RouteGrpcLog(void (*log)(absl::string_view text)) {
  grpc_sink = log;
  gpr_set_log_function([](gpr_log_func_args* args) {
    grpc_sink.load()(absl::StrCat("gRPC: ", args->message, " (",
                                  FileName(args->file), ":", args->line, ")"));
  });
  google::protobuf::SetLogHandler([](google::protobuf::LogLevel level,
                                     const char* file, int line,
                                     const std::string& message) {
    // The handler also gets what protobuf does not print by default.
    if (level < google::protobuf::LOGLEVEL_WARNING) return;
    grpc_sink.load()(absl::StrCat("protobuf: ", message, " (", FileName(file),
                                  ":", line, ")"));
  });
}

void SilenceGrpcLog() {
  if (std::getenv("GRPC_VERBOSITY") != nullptr) return;
  RouteGrpcLog([](absl::string_view /*text*/) {});
}

}  // namespace cohort
