#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/moments.h"
#include "common/mutex.h"
#include "common/timeline.h"
#include "server/core/events/effects.h"
#include "server/metrics/shard_stats.h"

namespace cohort {

// The fold of one partition.
struct TracedFold {
  int64_t transaction = 0;
  int32_t partition = 0;
  std::string pass;
  int64_t contributions = 0;
  Instant begin;
  Instant end;
};

// The work of a server process, as spans of a timeline:
//   "fold"         one partition, on the thread that folds it
//   "apply"        from the first fold of a commit to the commit; on its own
//                  track
//   "prepare"      from the plan of a commit to the last fold of a shard; on a
//                  track for each shard, where there are several
//   "rendezvous"   of one member, from its moments' arrival to the answer; on a
//                  track for each rank, with the rank that came last. The span
//                  of the member that came first is the rendezvous' whole time.
// Thread safety: safe. Takes no lock but its own, for as long as a map lookup.
class RunTrace {
 public:
  explicit RunTrace(Timeline& timeline) : timeline_(timeline) {}

  // Moments of `rank` for the layer of this name were accepted, with these
  // effects.
  void Arrived(const ReduceKey& key, absl::string_view layer, Rank rank,
               Instant now, absl::Span<const Effect> effects)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Answered(const ReduceKey& key, Rank rank, Instant now)
      ABSL_LOCKS_EXCLUDED(mu_);

  void Folded(const TracedFold& fold) ABSL_LOCKS_EXCLUDED(mu_);
  void Prepared(const ShardStats::Prepared& prepared, Version version);
  void Committed(const CommitRecord& record, Instant now)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Waiting {
    std::string layer;
    Instant since;
    std::optional<Rank> last;
  };

  Timeline& timeline_;

  Mutex mu_;
  // Members of open rendezvous. Entries of steps that ended early are removed
  // when their rank contributes to another step or attempt.
  std::map<Rank, std::map<ReduceKey, Waiting>> waiting_ ABSL_GUARDED_BY(mu_);
  // Begin of the first fold since the last commit: one commit is folded at a
  // time.
  std::optional<Instant> apply_begin_ ABSL_GUARDED_BY(mu_);
  int64_t folds_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace cohort
