#include "server/shard/remote_gradients.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace cohort {

void RemoteGradients::Add(int32_t shard, RemoteGradient gradient) {
  const Rank rank = gradient.sender.rank;
  waiting_[rank].push_back({.shard = shard, .gradient = std::move(gradient)});
}

int RemoteGradients::Offer(Rank rank, Coordinator& core, Instant now,
                           Effects& out, std::vector<Refusal>& refused) {
  const auto at = waiting_.find(rank);
  if (at == waiting_.end()) return 0;
  std::deque<Entry>& queue = at->second;
  while (!queue.empty()) {
    Entry& entry = queue.front();
    RemoteGradient& gradient = entry.gradient;
    const int32_t partition = gradient.message.partition;
    const int64_t ticket = gradient.message.ticket;
    if (partition < 0 ||
        ShardPlace::OwnerOf(partition, shards_) != entry.shard) {
      refused.push_back(
          {.shard = entry.shard,
           .ticket = ticket,
           .status = absl::InvalidArgumentError(absl::StrCat(
               "gradient: got partition ", partition, " at shard ", entry.shard,
               ", want it at the shard that owns it"))});
      queue.pop_front();
      continue;
    }
    if (core.AwaitsOpening(gradient.sender, gradient.key)) return 0;
    const absl::StatusOr<Admission> admission = core.Gradient(
        gradient.sender, gradient.key, gradient.message, now, out);
    if (admission.ok() && *admission == Admission::kPaused) return 1;
    if (!admission.ok()) {
      refused.push_back({.shard = entry.shard,
                         .ticket = ticket,
                         .status = admission.status()});
    }
    queue.pop_front();
  }
  waiting_.erase(at);
  return 0;
}

}  // namespace cohort
