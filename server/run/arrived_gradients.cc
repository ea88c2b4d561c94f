#include "server/run/arrived_gradients.h"

#include <iterator>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace cohort {

void ArrivedGradients::Add(int32_t shard, RemoteGradient gradient,
                           Instant now) {
  const Rank rank = gradient.sender.rank;
  waiting_[rank].push_back(
      {.shard = shard, .gradient = std::move(gradient), .since = now});
}

int ArrivedGradients::Offer(Rank rank, Coordinator& core, Instant now,
                            Effects& out, std::vector<Refusal>& refused) {
  const auto at = waiting_.find(rank);
  if (at == waiting_.end()) return 0;
  std::deque<Entry>& queue = at->second;
  std::deque<Entry> unopened;
  int paused = 0;
  for (; !queue.empty(); queue.pop_front()) {
    Entry& entry = queue.front();
    const RemoteGradient& gradient = entry.gradient;
    const int32_t partition = gradient.gradient.partition;
    const auto refuse = [&refused, &entry](absl::Status status) {
      refused.push_back({.shard = entry.shard,
                         .ticket = entry.gradient.gradient.ticket,
                         .status = std::move(status)});
    };
    if (partition < 0 ||
        ShardPlace::OwnerOf(partition, shards_) != entry.shard) {
      refuse(absl::InvalidArgumentError(
          absl::StrCat("gradient: got partition ", partition, " at shard ",
                       entry.shard, ", want it at the shard that owns it")));
      continue;
    }
    // Gradients for shard 0 come on the stream that opens their push.
    if (entry.shard != 0 && core.AwaitsOpening(gradient.sender, gradient.key)) {
      if (now - entry.since < kOpeningDeadline) {
        unopened.push_back(std::move(entry));
      } else {
        refuse(absl::DeadlineExceededError(absl::StrCat(
            "gradient of partition ", partition,
            ": got no opening of its push "
            "in ",
            absl::ToInt64Seconds(kOpeningDeadline),
            " s; open the push at shard 0 and send the gradient again")));
      }
      continue;
    }
    const absl::StatusOr<Admission> admission = core.Gradient(
        gradient.sender, gradient.key, gradient.gradient, now, out);
    if (admission.ok() && *admission == Admission::kPaused) {
      entry.paused = true;
      paused = 1;
      break;
    }
    if (!admission.ok()) refuse(admission.status());
  }
  queue.insert(queue.begin(), std::make_move_iterator(unopened.begin()),
               std::make_move_iterator(unopened.end()));
  if (queue.empty()) waiting_.erase(at);
  return paused;
}

std::vector<Rank> ArrivedGradients::Overdue(Instant now) const {
  std::vector<Rank> ranks;
  for (const auto& [rank, queue] : waiting_) {
    for (const Entry& entry : queue) {
      // Later ones need room, too.
      if (entry.paused) break;
      if (now - entry.since < kOpeningDeadline) continue;
      ranks.push_back(rank);
      break;
    }
  }
  return ranks;
}

}  // namespace cohort
