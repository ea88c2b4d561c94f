#include "worker/client/client.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/listen_address.h"
#include "common/status_macros.h"
#include "common/wire/channel.h"
#include "common/wire/grpc_log.h"
#include "common/wire/security.h"
#include "worker/client/grpc_client.h"
#include "worker/client/retrying_client.h"

namespace cohort {

void PrepareTransport(void (*log)(absl::string_view text)) {
  ApplyProcessSettings();
  RouteGrpcLog(log);
}

absl::StatusOr<std::unique_ptr<Client>> MakeGrpcClient(
    const ClientOptions& options) {
  COHORT_RETURN_IF_ERROR(CheckServerAddress("--server", options.server));
  if (options.rank.has_value() && options.rank->value() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank: got ", options.rank->value(), ", want at least 0"));
  }
  if (options.batch_size <= 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "batch_size: got ", options.batch_size, ", want at least 1"));
  }
  if (options.batch_size_max != 0 &&
      options.batch_size_max < options.batch_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "batch_size_max: got ", options.batch_size_max, ", want at least ",
        options.batch_size, ", the batch size, or 0 (not stated)"));
  }
  if (options.server_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "server_timeout: got ", absl::FormatDuration(options.server_timeout),
        ", want above 0"));
  }
  TlsWatcher::OnMessage on_tls_files;
  if (options.hooks != nullptr) {
    on_tls_files = [hooks = options.hooks](bool fault,
                                           const std::string& text) {
      hooks->OnTlsFiles(fault, text);
    };
  }
  COHORT_ASSIGN_OR_RETURN(SharedSecurity security,
                          Security::Load(options.tls, on_tls_files));
  auto once = std::make_unique<GrpcClient>(options, std::move(security));
  // Clock and sleeper belong to the client that the decorator owns.
  const Clock& clock = once->clock();
  Sleeper& sleeper = once->sleeper();
  return std::make_unique<RetryingClient>(std::move(once), options, clock,
                                          sleeper);
}

}  // namespace cohort
