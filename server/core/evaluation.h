#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "common/assignment.h"
#include "common/ids.h"
#include "server/core/effects.h"

namespace cohort {

// Evaluations under way: each reads one pinned version, in shards that any
// rank may compute. No part of training depends on them but the end of the
// run.
class EvaluationBook {
 public:
  struct Shard {
    Version version;
    int32_t index = 0;
    IndexRange range;
  };

  // Cuts the test split into `shards` near-equal ranges and pins `snapshot`.
  // An evaluation of the same version that is under way is not repeated.
  void Start(SharedSnapshot snapshot, int64_t epochs, int64_t test_samples,
             int32_t shards);

  // The next shard nobody computes yet.
  std::optional<Shard> Take();
  // Its rank was lost: the next caller gets it.
  void Return(const Shard& shard);
  // Adds a result; returns the whole once the last shard is in. Sums are
  // added in shard order. A shard that is already in is ignored.
  std::optional<EvaluationRecord> Finish(const Shard& shard,
                                         const EvaluationSums& sums);

  bool pending() const { return !waiting_.empty(); }
  bool empty() const { return open_.empty(); }
  // Null if that version is not pinned here.
  SharedSnapshot Pinned(Version version) const;

 private:
  struct Open {
    SharedSnapshot snapshot;
    int64_t epochs = 0;
    std::vector<std::optional<EvaluationSums>> shards;
  };

  std::map<Version, Open> open_;
  std::deque<Shard> waiting_;
};

}  // namespace cohort
