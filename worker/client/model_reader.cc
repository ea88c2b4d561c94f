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
namespace {

class GrpcModelReader final : public ModelReader {
 public:
  GrpcModelReader(const ReaderOptions& options, const SharedSecurity& security)
      : options_(options),
        bulk_(MakeChannel(options.server, ChannelPurpose::kBulk, security)),
        shards_(security),
        link_(options.server, clock_) {}

  absl::StatusOr<PulledVersion> Pull(const ModelLayout& layout,
                                     std::optional<Version> version) override {
    const Instant deadline = clock_.Now() + options_.server_timeout;
    Backoff backoff(options_.backoff_seed);
    for (;;) {
      // Without a run id the server sends whatever run it holds.
      absl::StatusOr<PulledVersion> pulled = PullVersion(
          {.channel = bulk_,
           .link = &link_,
           .deadline = deadline,
           .patience = options_.server_timeout,
           .shards = &shards_},
          {.version = version, .weights = true, .statistics = true});
      if (pulled.ok()) {
        COHORT_RETURN_IF_ERROR(CheckReadable(layout, pulled->layout));
        return pulled;
      }
      // A damaged reply is requested again, as if it had not come.
      if (!absl::IsUnavailable(pulled.status()) &&
          !absl::IsDataLoss(pulled.status())) {
        return pulled.status();
      }
      if (clock_.Now() >= deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat(pulled.status().message(), "; gave up after ",
                         SecondsText(options_.server_timeout)));
      }
      COHORT_RETURN_IF_ERROR(
          link_.Pause(std::min(backoff.Next(), deadline - clock_.Now())));
    }
  }

  void RequestStop() override { link_.RequestStop(); }

 private:
  const ReaderOptions options_;
  const SteadyClock clock_;
  const std::shared_ptr<grpc::Channel> bulk_;
  ShardChannels shards_;
  Link link_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ModelReader>> MakeModelReader(
    const ReaderOptions& options) {
  COHORT_RETURN_IF_ERROR(CheckServerAddress("--server", options.server));
  if (options.server_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "server_timeout: got ", absl::FormatDuration(options.server_timeout),
        ", want above 0"));
  }
  COHORT_ASSIGN_OR_RETURN(const SharedSecurity security,
                          Security::Load(options.tls));
  return std::make_unique<GrpcModelReader>(options, security);
}

}  // namespace cohort
