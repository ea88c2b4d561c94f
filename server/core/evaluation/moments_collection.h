#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "common/assignment.h"
#include "common/ids.h"
#include "common/model_layout.h"
#include "common/moments.h"
#include "server/core/events/effects.h"

namespace cohort {

// The batches that precise statistics are computed over.
struct CollectionPlan {
  int64_t train_samples = 0;
  // One entry a rank, in rank order, each 1 or more.
  std::vector<int64_t> batch_sizes;
  // True: a batch is a step's, all ranks' samples together. False: it is one
  // rank's.
  bool global_normalization = false;
  // With global normalisation: ranks whose samples make a batch; 0: all.
  int32_t group_size = 0;
  int64_t batches_max = 0;
};

// The first batches of an epoch as training cuts it, at most `batches_max`.
// Training's last batch of an epoch may be short; here it is left out unless
// it is the only one, for its moments are no typical batch's.
std::vector<IndexRange> CollectionBatches(const CollectionPlan& plan);

// One collection of batch-norm moments over fixed weights ("precise BN"): each
// batch is a shard that any rank may compute, alone and whole.
//
// Which rank computes a batch leaves no trace: its moments are a function of
// weights and batch alone, and batches are folded in batch order (Chan,
// float64), whatever the order of arrival. Any sharding gives the same bits.
//
// Source: precise BN of fvcore (Wu and Johnson, "Rethinking 'Batch' in
//   BatchNorm", 2021, section 3.1), population statistics; there the batches
//   are averaged as (mean, E[x^2]), here they are combined as (n, mean, M2).
class MomentsCollection {
 public:
  struct Shard {
    // Number of the batch.
    int64_t index = 0;
    IndexRange range;
  };

  // Pins `snapshot`. `layers` is how many batch-norm layers there are.
  MomentsCollection(SharedVersion snapshot,
                    const std::vector<IndexRange>& batches, size_t layers);

  // The next batch that no rank computes yet. It must be returned or finished,
  // once.
  std::optional<Shard> Take();
  // Its rank was lost: the next caller gets it.
  void Return(const Shard& shard);
  // Adds the moments of all calls of one batch, ascending by (layer, call),
  // each with its layer's channels.
  void Finish(const Shard& shard, Rank rank, std::vector<CallMoments> calls);

  bool complete() const { return folded_ == batches_; }
  int64_t batches() const { return batches_; }
  // So many first batches are folded.
  int64_t folded() const { return folded_; }
  const SharedVersion& snapshot() const { return snapshot_; }

  // Where a moment was not finite; names the first in batch order.
  struct Nonfinite {
    Rank rank;
    int32_t layer = 0;
    int64_t batch = 0;
  };
  const std::optional<Nonfinite>& nonfinite() const { return nonfinite_; }

  // Statistics of all that was folded; a layer that does not track them or was
  // never called is left as it is. The variance is biased or not by the
  // layer's convention, and num_batches_tracked becomes the calls folded.
  // `statistics` and `layers` have one entry a layer.
  void Write(const std::vector<BatchNormSpec>& layers,
             std::vector<LayerStatistics>& statistics) const;

 private:
  struct Batch {
    Rank rank;
    std::vector<CallMoments> calls;
  };
  struct LayerTotal {
    Moments moments;
    int64_t calls = 0;
  };

  void Fold(const Batch& batch);

  SharedVersion snapshot_;
  int64_t batches_ = 0;
  std::deque<Shard> waiting_;
  // By index: arrived, but an earlier one has not.
  std::map<int64_t, Batch> early_;
  int64_t folded_ = 0;
  std::vector<LayerTotal> totals_;
  std::optional<Nonfinite> nonfinite_;
};

}  // namespace cohort
