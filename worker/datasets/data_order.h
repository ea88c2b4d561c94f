#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/assignment.h"
#include "common/ids.h"
#include "worker/datasets/dataset.h"

namespace cohort {

enum class OrderKind {
  // Every rank draws from all training samples.
  kShuffled,
  // Every rank draws from a separate share: a contiguous part of the samples
  // sorted by class, so that the ranks see different classes.
  kSorted,
};

struct OrderOptions {
  OrderKind kind = OrderKind::kShuffled;
  // Training samples of an epoch, drawn again for each epoch; 0: all.
  int64_t limit = 0;
  // Test samples that are scored, spread evenly over the split; 0: all.
  int64_t test_limit = 0;

  friend bool operator==(const OrderOptions&, const OrderOptions&) = default;
};

// `name` is shuffled or sorted.
inline OrderKind OrderKindNamed(absl::string_view name) {
  return name == "sorted" ? OrderKind::kSorted : OrderKind::kShuffled;
}

// Errors: InvalidArgument naming the flag: a limit that is negative or beyond
//   the data set.
absl::Status CheckFits(const OrderOptions& options, const Dataset& dataset);

// The number of positions of an epoch, and of the test split.
int64_t EpochSize(const OrderOptions& options, const Dataset& dataset);
int64_t TestSize(const OrderOptions& options, const Dataset& dataset);

// The data set's name and order options, for comparing workers.
std::string PlanName(const OrderOptions& options, const Dataset& dataset);

// The rank that draws, and the size of its batches.
struct OrderPlace {
  uint64_t seed = 1;
  Rank rank{0};
  int32_t workers = 1;
  // Samples of this rank in one step.
  int64_t batch_size = 1;
};

// Maps the positions that the server hands out to sample numbers.
//
// Shuffled: position p of an epoch is the sample at p of the permutation (seed,
// epoch), the first `limit` of it. Sorted: share r of W holds the samples
// [r*n/W, (r+1)*n/W) of all n sorted by class (of a mask: its commonest), and
// is permuted by (seed, r, epoch). The server counts positions of all ranks
// together, so a rank that is handed [b, e) draws e-b samples from place b/W of
// its share on. In a synchronous step of equal batches that is each sample once
// an epoch. An asynchronous rank goes through its share at its own speed, so a
// few samples are drawn twice or not at all in an epoch; the number of samples
// is exact. The other ranks do not read a lost rank's share, as if the data
// were stored with the worker.
//
// Thread safety: none; it keeps the permutations of the newest epoch.
class DataOrder {
 public:
  // `dataset` must outlive it.
  // Errors: InvalidArgument if a share would be empty.
  static absl::StatusOr<DataOrder> Make(const Dataset& dataset,
                                        const OrderOptions& options,
                                        const OrderPlace& place);

  // Samples that this rank trains on. The range must be within an epoch.
  std::vector<int64_t> Training(int64_t epoch, const IndexRange& range);
  // A batch that any rank may compute, with the same samples for every rank.
  // For kSorted, cut as training cuts it when all ranks have equal batches.
  std::vector<int64_t> Common(int64_t epoch, const IndexRange& range);
  std::vector<int64_t> Test(const IndexRange& range) const;
  // Test samples in a separate order, which separates neighbours of the
  // split (frames of one drive).
  std::vector<int64_t> MixedTest(const IndexRange& range) const;

  // Positions of an epoch, and of the test split.
  int64_t epoch_size() const { return EpochSize(options_, *dataset_); }
  int64_t test_size() const { return TestSize(options_, *dataset_); }

 private:
  DataOrder(const Dataset& dataset, const OrderOptions& options,
            const OrderPlace& place)
      : dataset_(&dataset), options_(options), place_(place) {}

  int64_t InShare(int64_t share, int64_t epoch, int64_t at);
  const std::vector<int64_t>& Permutation(int64_t share, int64_t epoch);
  int64_t ShareBegin(int64_t share) const;

  const Dataset* dataset_;
  OrderOptions options_;
  OrderPlace place_;
  // For kSorted: sample numbers ordered by class.
  std::vector<int64_t> sorted_;
  // By share (for kShuffled: 0): the epoch, and its permutation.
  std::map<int64_t, std::pair<int64_t, std::vector<int64_t>>> permutations_;
};

}  // namespace cohort
