#include "worker/client/model_reader.h"

#include <grpcpp/channel.h>

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/listen_address.h"
#include "common/status_macros.h"
#include "common/wire/channel.h"
#include "common/wire/security.h"
#include "worker/client/backoff.h"
#include "worker/client/link.h"
#include "worker/client/transfer.h"

namespace cohort {

absl::StatusOr<PulledVersion> ReadNewest(const ReaderOptions& options,
                                         const ModelLayout& layout) {
  COHORT_RETURN_IF_ERROR(CheckServerAddress("--server", options.server));
  if (options.server_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "server_timeout: got ", absl::FormatDuration(options.server_timeout),
        ", want above 0"));
  }
  COHORT_ASSIGN_OR_RETURN(const SharedSecurity security,
                          Security::Load(options.tls));
  const SteadyClock clock;
  const std::shared_ptr<grpc::Channel> bulk =
      MakeChannel(options.server, ChannelPurpose::kBulk, security);
  ShardChannels shards(security);
  Link link(options.server, clock);
  const Instant deadline = clock.Now() + options.server_timeout;
  Backoff backoff(options.backoff_seed);
  for (;;) {
    // Without a run id the server sends whatever run it holds.
    absl::StatusOr<PulledVersion> pulled =
        PullVersion({.channel = bulk,
                     .link = &link,
                     .deadline = deadline,
                     .patience = options.server_timeout,
                     .shards = &shards},
                    {.weights = true, .statistics = true});
    if (pulled.ok()) {
      COHORT_RETURN_IF_ERROR(CheckReadable(layout, pulled->layout));
      return pulled;
    }
    // A damaged reply is requested again, as if it had not come.
    if (!absl::IsUnavailable(pulled.status()) &&
        !absl::IsDataLoss(pulled.status())) {
      return pulled.status();
    }
    if (clock.Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(pulled.status().message(), "; gave up after ",
                       SecondsText(options.server_timeout)));
    }
    COHORT_RETURN_IF_ERROR(
        link.Pause(std::min(backoff.Next(), deadline - clock.Now())));
  }
}

}  // namespace cohort
