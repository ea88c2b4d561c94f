#include "server/main/lifecycle.h"

#include <utility>

namespace cohort {

void ServerLifecycle::RunEnded(RunOutcome outcome) {
  if (!stopping_) outcome_ = outcome;
}

bool ServerLifecycle::ShardLeaving(int32_t shard) {
  if (!attached_) return true;
  leaving_shard_ = shard;
  return false;
}

bool ServerLifecycle::LeavingShardSaved(absl::string_view why) {
  // A stop of all shards writes its own checkpoint.
  if (stop_requested_) return false;
  ShardLost(why);
  return true;
}

void ServerLifecycle::ShardLost(absl::string_view why) {
  // What is lost after the first one is a consequence.
  if (lost_.empty()) lost_ = std::string(why);
}

ServerLifecycle::Task ServerLifecycle::TakeTask() {
  if (!outcome_.has_value() && !LeavingRequested() && lost_.empty()) {
    // First, because the run stands still until it is stored.
    if (std::exchange(milestone_, false)) return Task::kStoreMilestone;
    return leaving_shard_ > 0 ? Task::kSaveForLeaving : Task::kWait;
  }
  // After any other end, a supervisor that starts the server again continues
  // the run.
  const bool done =
      outcome_ == RunOutcome::kFinished || outcome_ == RunOutcome::kDrained;
  const bool stays = options_.exit_when_done ? outcome_.has_value() : done;
  return !stays || std::exchange(stayed_, true) ? Task::kStop : Task::kStay;
}

bool ServerLifecycle::BeginStop() {
  if (std::exchange(stopping_, true)) return false;
  // Data shards that are lost from now on are stopped, too.
  elsewhere_ = !outcome_.has_value() && !lost_.empty() &&
               !(MissesShards() && stop_requested_);
  return true;
}

ServerLifecycle::Ending ServerLifecycle::ending() const {
  if (concluded_) return Ending::kNothing;
  if (outcome_.has_value()) return Ending::kConclude;
  if (MissesShards() && stop_requested_) return Ending::kConcludeWithoutShards;
  return MissesShards() || elsewhere_ ? Ending::kFinishRecorder
                                      : Ending::kConclude;
}

}  // namespace cohort
