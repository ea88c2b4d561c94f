// The shard's door: admits streams, and ends those that send or read nothing.

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/core/optimizer/slots.h"
#include "server/core/statistics_sets.h"
#include "server/shard/shard.h"

namespace cohort {
namespace {

// Time from the opening of a session to its join.
constexpr absl::Duration kJoinDeadline = absl::Seconds(5);

constexpr int kTicksPerReaderCheck = 20;

}  // namespace

void Shard::CheckStreams(int64_t ticks) {
  const Instant now = clock_.Now();
  EndAll(streams().TakeSilent(now),
         absl::DeadlineExceededError(
             absl::StrCat("got no message in time, want a join within ",
                          absl::FormatDuration(kJoinDeadline),
                          " of opening a session, and a first message within ",
                          absl::FormatDuration(kFirstMessageDeadline),
                          " of opening any other stream")));
  for (const auto& pull : pulls().Tick(now)) pull->SendPartition();
  host_.EndOverdueReads();
  if (ticks % kTicksPerReaderCheck != 0) return;
  OfferOverdue();
  for (const auto& stream : streams().All()) stream->CheckReader(now);
}

absl::StatusOr<SessionId> Shard::AdmitSession(
    const std::shared_ptr<SessionStream>& stream) {
  if (options_.shard_stats != nullptr) {
    MutexLock lock(mu_);
    if (!started_) {
      const std::string waiting = options_.shard_stats->WaitingText();
      return absl::UnavailableError(waiting.empty() ? "the server is starting"
                                                    : waiting);
    }
  }
  StreamRegistry::Streams evicted;
  absl::StatusOr<SessionId> id =
      streams().AdmitSession(stream, clock_.Now() + kJoinDeadline, &evicted);
  EndEvicted(evicted);
  return id;
}

absl::Status Shard::AdmitStream(const std::shared_ptr<Stream>& stream,
                                bool speaks) {
  std::optional<Instant> speak_by;
  if (speaks) speak_by = clock_.Now() + kFirstMessageDeadline;
  StreamRegistry::Streams evicted;
  const absl::Status admitted = streams().Admit(stream, speak_by, &evicted);
  EndEvicted(evicted);
  return admitted;
}

ModelNeeds Shard::model_needs() const {
  const CoordinatorOptions options = this->options();
  return {.slots = static_cast<int32_t>(
              SlotsOf(options.optimizer, options.policy).size()),
          .statistics_kinds = std::max<int32_t>(
              1, static_cast<int32_t>(
                     KindsKept(options.policy, options.optimizer).size())),
          .memory_bytes = options_.memory_bytes,
          .weight_bytes_max = options_.weight_bytes_max};
}

void Shard::CloseStreams() {
  EndAll(streams().Close(), absl::UnavailableError("the server is stopping"));
}

}  // namespace cohort
