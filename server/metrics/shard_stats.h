#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "server/core/model/model_snapshot.h"
#include "server/metrics/run_figures.h"

namespace cohort {

// Which data shards are connected, and how long each shard prepares a commit.
// One object serves a process for as long as it runs: after the loss of a shard
// the run continues in a new RunHost, and what is known of the shards stays.
//
// Thread safety: safe. Calls nothing but clocks under its lock, so it may be
// called under any other.
class ShardStats {
 public:
  // One shard's part of a commit.
  struct Prepared {
    int32_t shard = 0;
    // The plan was sent.
    Instant begin;
    // The last fold was reported.
    Instant end;
  };

  // `addresses` of the data shards, from shard 1 on.
  ShardStats(const std::vector<std::string>& addresses,
             std::shared_ptr<const Clock> clock);

  // ---- connections
  // Returns how long the shard was gone; absent if it was not lost before.
  std::optional<absl::Duration> Attached(int32_t shard, int64_t generation)
      ABSL_LOCKS_EXCLUDED(mu_);
  // No-op if the shard is not connected.
  void Lost(int32_t shard, const std::string& why) ABSL_LOCKS_EXCLUDED(mu_);
  // The shard cannot be used now, for the reason `why`. Unlike Lost it is not
  // counted: its connection was ended by shard 0, to begin again, or there was
  // none yet.
  void Missing(int32_t shard, const std::string& why) ABSL_LOCKS_EXCLUDED(mu_);
  // The shards that the run waits for, each with the reason, as a sentence;
  // empty if there are none. Until the first connection, an absent shard is
  // waited for but not lost.
  std::string WaitingText() const ABSL_LOCKS_EXCLUDED(mu_);

  // ---- commits; one at a time
  void Planned(int64_t transaction) ABSL_LOCKS_EXCLUDED(mu_);
  // No-op if the fold is of a transaction that is over.
  void Folded(int32_t shard, int64_t transaction) ABSL_LOCKS_EXCLUDED(mu_);
  // The times of the shards that have folded anything, by index.
  std::vector<Prepared> Committed(int64_t transaction) ABSL_LOCKS_EXCLUDED(mu_);

  // All shards, by index. `model` may be null.
  std::vector<ShardFigures> figures(const RegisteredModel* model) const
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct State {
    std::string address;
    bool connected = false;
    Instant since;
    absl::Time since_wall;
    std::string lost_because;
    // Why it cannot be used, found after a loss or before the first connection;
    // empty while connected.
    std::string missing_because;
    int64_t losses = 0;
    // The generation of the newest connection; 0 if there was none.
    int64_t generation = 0;
    // The last fold of the transaction in progress.
    std::optional<Instant> folded;
    std::optional<absl::Duration> prepare;
    absl::Duration prepare_total;
    absl::Duration holdup_total;
  };

  static const std::string& WhyGone(const State& state) {
    return state.missing_because.empty() ? state.lost_because
                                         : state.missing_because;
  }
  void GoneLocked(State& state, const std::string& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  State& At(int32_t shard) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return shards_[static_cast<size_t>(shard)];
  }

  // Fixed after construction.
  const std::shared_ptr<const Clock> clock_;

  mutable Mutex mu_;
  // By index.
  std::vector<State> shards_ ABSL_GUARDED_BY(mu_);
  int64_t transaction_ ABSL_GUARDED_BY(mu_) = 0;
  Instant planned_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cohort
