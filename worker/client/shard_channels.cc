#include "worker/client/shard_channels.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cohort/v1/parameters.grpc.pb.h"
#include "common/status_macros.h"
#include "common/wire/channel.h"
#include "common/wire/message_checksum.h"
#include "common/wire/reach.h"

namespace cohort {
namespace {

// Limit on one try, time between two, and between two reports.
constexpr absl::Duration kTryMax = absl::Seconds(2);
constexpr absl::Duration kPause = absl::Milliseconds(500);
constexpr absl::Duration kTellInterval = absl::Seconds(10);

// Asks the process behind `channel` whether it is data shard `shard` of the
// run. Errors: Unavailable: it is not, or not now, with its answer.
absl::Status AskWhetherItServes(const std::shared_ptr<grpc::Channel>& channel,
                                const std::string& run_id, int32_t shard) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       absl::ToChronoMilliseconds(kTryMax));
  v1::PullRequest request;
  request.set_run_id(run_id);
  request.set_shard(shard);
  AddMessageChecksum(&request);
  const auto reader = v1::Parameters::NewStub(channel)->Pull(&context, request);
  v1::PullReply none;
  while (reader->Read(&none)) {
  }
  const grpc::Status end = reader->Finish();
  if (end.ok()) return absl::OkStatus();
  return absl::UnavailableError(end.error_code() ==
                                        grpc::StatusCode::UNIMPLEMENTED
                                    ? "it is no data shard"
                                    : end.error_message());
}

}  // namespace

std::shared_ptr<grpc::Channel> ShardChannels::To(const std::string& address) {
  std::shared_ptr<grpc::Channel>& channel = channels_[address];
  if (channel == nullptr) {
    channel = MakeChannel(address, ChannelPurpose::kBulk, security_);
  }
  return channel;
}

absl::Status ShardChannels::AwaitAll(
    const std::string& run_id, const std::vector<std::string>& addresses,
    const TlsFiles& tls, Link& link, Instant deadline,
    const std::function<void(const std::string&)>& on_wait) {
  // All connect at once.
  for (const std::string& address : addresses) {
    To(address)->GetState(/*try_to_connect=*/true);
  }
  std::optional<Instant> told_at;
  for (size_t i = 0; i < addresses.size();) {
    const auto& channel = To(addresses[i]);
    const bool ready = channel->GetState(false) == GRPC_CHANNEL_READY;
    absl::Status reached =
        ready ? absl::OkStatus() : Reach(channel, addresses[i], tls, kTryMax);
    if (reached.ok()) {
      reached =
          AskWhetherItServes(channel, run_id, static_cast<int32_t>(i) + 1);
    }
    {
      MutexLock lock(link.mu);
      COHORT_RETURN_IF_ERROR(link.CheckLocked());
      // A run that is over needs no data shard.
      if (link.tracker.finished()) return absl::OkStatus();
    }
    if (reached.ok()) {
      ++i;
      continue;
    }
    const std::string text = absl::StrCat(
        "data shard ", i + 1, " at ", addresses[i], ": ", reached.message(),
        "; workers use the addresses in the server's --shard_addresses");
    const Instant now = link.clock().Now();
    if (now >= deadline) return absl::UnavailableError(text);
    if (!told_at.has_value() || now - *told_at >= kTellInterval) {
      told_at = now;
      on_wait(text);
    }
    COHORT_RETURN_IF_ERROR(link.Pause(std::min(kPause, deadline - now)));
  }
  return absl::OkStatus();
}

}  // namespace cohort
