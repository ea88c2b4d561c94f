#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "server/streams/stream_registry.h"
#include "server/streams/streams.h"

namespace cohort {

// Limits the pulls in progress and the versions that they keep in memory.
// Otherwise a client that stops reading would pin one copy of the weights for
// each pull. A pull that makes no progress loses its place to a new one.
//
// Also gives turns to send. If all workers of a large cohort read the weights
// at once, each of so many connections would get so little of a slow link that
// a partition takes longer than a reader may take. So only some send at a time:
// those that have begun first, so that pulls end one after the other; but one
// that has waited for long comes first, so that its client sees progress.
//
// Thread safety: safe. Never calls a stream.
class PullTable {
 public:
  struct Limits {
    int32_t pulls = 64;
    int32_t pulls_per_peer = 8;
    int32_t versions = 4;
    // Pulls without progress for this long may lose their places, and lose
    // their turns.
    absl::Duration stalled_after = absl::Seconds(1);
    // Partitions in transfer at a time. With 64, each has 2 MB/s of a link of
    // 1 Gbit/s, above what CheckReader expects.
    int32_t turns = 64;
    // Waits for a turn that come first.
    absl::Duration long_wait = absl::Seconds(20);
  };
  using Turns = std::vector<std::shared_ptr<PullStream>>;

  // All workers may read at once, and be replaced as they do.
  static Limits LimitsOf(int32_t workers) {
    return {.pulls = 4 * workers + 64};
  }

  explicit PullTable(Limits limits) : limits_(limits) {}

  // Applies from now on; pulls in progress continue.
  void SetLimits(Limits limits) ABSL_LOCKS_EXCLUDED(mu_);

  // Counts `pull` of `version` until Forget. `peer` names the connection; if it
  // is empty, the connection is not limited by itself. Pulls that lose their
  // places to it are appended to `evicted`; the caller must cut them.
  // Errors: ResourceExhausted naming the limit.
  absl::Status Admit(const std::shared_ptr<PullStream>& pull,
                     const std::string& peer, Version version, Instant now,
                     StreamRegistry::Streams& evicted) ABSL_LOCKS_EXCLUDED(mu_);
  // An answer of this pull was read, and it has a partition to send. Returns
  // the pulls whose turn it is now, perhaps this one; the caller must let each
  // send one.
  [[nodiscard]] Turns Await(const Stream* pull, Instant now)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The pull is over. Returns the same.
  [[nodiscard]] Turns Forget(const Stream* pull, Instant now)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Call it every few ticks: takes the turns of pulls that have stalled.
  [[nodiscard]] Turns Tick(Instant now) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Pull {
    int64_t number = 0;
    std::shared_ptr<PullStream> stream;
    std::string peer;
    Version version;
    Instant progress;
    // Since when it waits for a turn, or has had one; absent: neither.
    std::optional<Instant> waits_since;
    std::optional<Instant> sends_since;
  };
  using Pulls = std::map<const Stream*, Pull>;
  // Pulls by an instant, then in the order in which they began.
  using Since = std::map<std::pair<Instant, int64_t>, Pull*>;

  // By version: the last time that one of its pulls made progress.
  std::map<Version, Instant> Versions() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Evicts the version that has been without progress longest. Returns false if
  // none has stalled.
  bool EvictVersion(Instant now, StreamRegistry::Streams& evicted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool EvictPull(Instant now, StreamRegistry::Streams& evicted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the next pull.
  Pulls::iterator Erase(Pulls::iterator pull)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The pull neither waits nor sends.
  void EndTurn(Pull& pull) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Turns GiveTurns(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Mutex mu_;
  Limits limits_ ABSL_GUARDED_BY(mu_);
  int64_t next_number_ ABSL_GUARDED_BY(mu_) = 0;
  Pulls pulls_ ABSL_GUARDED_BY(mu_);
  // How many pulls there are of each.
  std::map<std::string, int32_t> of_peer_ ABSL_GUARDED_BY(mu_);
  std::map<Version, int32_t> of_version_ ABSL_GUARDED_BY(mu_);
  // Pulls that wait for a turn: by number, and by how long they have waited.
  std::map<int64_t, Pull*> waiting_ ABSL_GUARDED_BY(mu_);
  Since waiting_since_ ABSL_GUARDED_BY(mu_);
  Since sending_since_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cohort
