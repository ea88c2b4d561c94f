#include "worker/datasets/data_order.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/permutation.h"

namespace cohort {
namespace {

absl::Status CheckLimit(absl::string_view flag, int64_t limit, int64_t size,
                        const Dataset& dataset) {
  if (limit >= 0 && limit <= size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, ": got ", limit, ", want 1 to ", size,
                   " (the size of ", dataset.name(), "), or 0 for all"));
}

// Separates the seeds of shares from the seed of the whole.
uint64_t ShareSeed(uint64_t seed, int64_t share) {
  return MixSeed(seed, static_cast<uint64_t>(share) + 1);
}

}  // namespace

absl::Status CheckFits(const OrderOptions& options, const Dataset& dataset) {
  absl::Status status =
      CheckLimit("limit", options.limit, dataset.train_size(), dataset);
  status.Update(CheckLimit("test_limit", options.test_limit,
                           dataset.test_size(), dataset));
  return status;
}

int64_t EpochSize(const OrderOptions& options, const Dataset& dataset) {
  return options.limit == 0 ? dataset.train_size() : options.limit;
}

int64_t TestSize(const OrderOptions& options, const Dataset& dataset) {
  return options.test_limit == 0 ? dataset.test_size() : options.test_limit;
}

std::string PlanName(const OrderOptions& options, const Dataset& dataset) {
  return options.kind == OrderKind::kSorted
             ? absl::StrCat(dataset.name(), ", sorted by class")
             : dataset.name();
}

absl::StatusOr<DataOrder> DataOrder::Make(const Dataset& dataset,
                                          const OrderOptions& options,
                                          const OrderPlace& place) {
  DataOrder order(dataset, options, place);
  if (options.kind == OrderKind::kShuffled) return order;
  if (dataset.train_size() < place.workers) {
    return absl::InvalidArgumentError(absl::StrCat("--order=sorted: got ",
                                                   dataset.train_size(),
                                                   " training samples, want "
                                                   "one or more for each of ",
                                                   place.workers, " workers"));
  }
  const std::vector<int64_t> classes = dataset.TrainClasses();
  order.sorted_.resize(classes.size());
  std::iota(order.sorted_.begin(), order.sorted_.end(), int64_t{0});
  std::stable_sort(order.sorted_.begin(), order.sorted_.end(),
                   [&classes](int64_t a, int64_t b) {
                     return classes[static_cast<size_t>(a)] <
                            classes[static_cast<size_t>(b)];
                   });
  return order;
}

int64_t DataOrder::ShareBegin(int64_t share) const {
  return share * dataset_->train_size() / place_.workers;
}

const std::vector<int64_t>& DataOrder::Permutation(int64_t share,
                                                   int64_t epoch) {
  auto& [held, permutation] = permutations_[share];
  if (permutation.empty() || held != epoch) {
    held = epoch;
    permutation =
        options_.kind == OrderKind::kShuffled
            ? EpochPermutation(place_.seed, epoch, dataset_->train_size())
            : EpochPermutation(ShareSeed(place_.seed, share), epoch,
                               ShareBegin(share + 1) - ShareBegin(share));
  }
  return permutation;
}

int64_t DataOrder::InShare(int64_t share, int64_t epoch, int64_t at) {
  const std::vector<int64_t>& permutation = Permutation(share, epoch);
  const auto size = static_cast<int64_t>(permutation.size());
  return sorted_[static_cast<size_t>(
      ShareBegin(share) + permutation[static_cast<size_t>(at % size)])];
}

std::vector<int64_t> DataOrder::Training(int64_t epoch,
                                         const IndexRange& range) {
  if (options_.kind == OrderKind::kShuffled) return Common(epoch, range);
  std::vector<int64_t> samples;
  for (int64_t i = 0; i < range.size(); ++i) {
    samples.push_back(
        InShare(place_.rank.value(), epoch, range.begin / place_.workers + i));
  }
  return samples;
}

std::vector<int64_t> DataOrder::Common(int64_t epoch, const IndexRange& range) {
  if (options_.kind == OrderKind::kShuffled) {
    const std::vector<int64_t>& permutation = Permutation(0, epoch);
    return {permutation.begin() + range.begin, permutation.begin() + range.end};
  }
  const int64_t batch = place_.batch_size;
  std::vector<int64_t> samples;
  for (int64_t p = range.begin; p < range.end; ++p) {
    const int64_t step = p / (batch * place_.workers);
    samples.push_back(
        InShare(p / batch % place_.workers, epoch, step * batch + p % batch));
  }
  return samples;
}

std::vector<int64_t> DataOrder::Test(const IndexRange& range) const {
  std::vector<int64_t> samples;
  for (int64_t p = range.begin; p < range.end; ++p) {
    samples.push_back(p * dataset_->test_size() / test_size());
  }
  return samples;
}

std::vector<int64_t> DataOrder::MixedTest(const IndexRange& range) const {
  const std::vector<int64_t> all = Test({.begin = 0, .end = test_size()});
  const std::vector<int64_t> permutation =
      EpochPermutation(place_.seed, 0, test_size());
  std::vector<int64_t> samples;
  for (int64_t p = range.begin; p < range.end; ++p) {
    samples.push_back(
        all[static_cast<size_t>(permutation[static_cast<size_t>(p)])]);
  }
  return samples;
}

}  // namespace cohort
