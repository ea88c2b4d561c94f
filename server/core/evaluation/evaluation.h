#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/assignment.h"
#include "common/evaluation_sums.h"
#include "common/ids.h"
#include "server/core/events/effects.h"

namespace cohort {

// Evaluations in progress: each reads one pinned version, in shards that any
// rank may compute. Training does not depend on them, but the end of the run
// does, and the next step if workers want its score (PinnedWork).
class EvaluationBook {
 public:
  struct Shard {
    Version version;
    // Which of the snapshot's moving statistics.
    StatisticsKind statistics = StatisticsKind::kSync;
    int32_t index = 0;
    IndexRange range;
  };

  struct Plan {
    // As in EvaluationRecord.
    int64_t epochs = 0;
    bool on_request = false;
    int64_t test_samples = 0;
    int32_t shards = 1;
    // Each is evaluated over the whole split; none: nothing is started.
    std::vector<StatisticsKind> kinds;
  };

  // Cuts the test split into `shards` near-equal ranges a kind and pins
  // `snapshot`. An evaluation of the same version that is in progress is not
  // repeated.
  void Start(SharedVersion snapshot, const Plan& plan);

  // The next shard that no rank computes yet. It must be returned or finished,
  // once.
  std::optional<Shard> Take();
  // Its rank was lost: the next caller gets it.
  void Return(const Shard& shard);
  // Whether the shard may be finished with these sums.
  // Errors: InvalidArgument if its measures are not those of the others.
  absl::Status CheckFits(const Shard& shard, const EvaluationSums& sums) const;
  // Adds a result, which must fit; returns the whole once the last shard is
  // in. Sums are added in shard order.
  std::optional<EvaluationRecord> Finish(const Shard& shard,
                                         const EvaluationSums& sums);

  bool empty() const { return open_.empty(); }
  // Null if that version is not pinned here.
  SharedVersion Pinned(Version version) const;

 private:
  struct Open {
    SharedVersion snapshot;
    Plan plan;
    // Kind by kind.
    std::vector<std::optional<EvaluationSums>> shards;
  };

  std::map<Version, Open> open_;
  std::deque<Shard> waiting_;
};

}  // namespace cohort
