#include "worker/train/assignment_samples.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace cohort {

bool NormalisesByBatch(const Assignment& assignment) {
  return assignment.kind == AssignmentKind::kEvaluate &&
         assignment.statistics == kBatchStatistics;
}

AssignmentSamples::AssignmentSamples(const Dataset& dataset,
                                     const Compute& compute,
                                     const Options& options, DataOrder order)
    : dataset_(dataset),
      compute_(compute),
      run_seed_(options.run_seed),
      order_(std::move(order)),
      reader_(dataset, options.loader_threads) {}

absl::Status AssignmentSamples::HoldOnDevice() {
  if (compute_.accelerator == nullptr) return absl::OkStatus();
  batches_ = std::make_unique<DeviceBatches>(compute_, dataset_);
  return batches_->Hold().status();
}

absl::StatusOr<std::vector<int64_t>> AssignmentSamples::IndicesOf(
    const Assignment& assignment) {
  const bool test = assignment.split == DataSplit::kTest;
  const int64_t held = test ? order_.test_size() : order_.epoch_size();
  if (assignment.range.end > held) {
    return absl::InternalError(absl::StrCat(
        "assignment ", assignment.sequence.value(), ": got samples up to ",
        assignment.range.end, ", want at most ", held, ", the size of ",
        dataset_.name()));
  }
  // Neighbours in the files (frames of one drive) must not be normalised
  // together.
  if (test && NormalisesByBatch(assignment)) {
    return order_.MixedTest(assignment.range);
  }
  if (test) return order_.Test(assignment.range);
  return assignment.kind == AssignmentKind::kCollectMoments
             ? order_.Common(assignment.data_epoch, assignment.range)
             : order_.Training(assignment.data_epoch, assignment.range);
}

absl::StatusOr<Batch> AssignmentSamples::Read(const Assignment& assignment) {
  COHORT_ASSIGN_OR_RETURN(const std::vector<int64_t> indices,
                          IndicesOf(assignment));
  const SampleRequest request{
      .indices = indices,
      .augmentation = AugmentationKey{.run_seed = run_seed_,
                                      .data_epoch = assignment.data_epoch}};
  if (batches_ != nullptr) {
    COHORT_ASSIGN_OR_RETURN(std::optional<Batch> made, batches_->Make(request));
    if (made.has_value()) return *std::move(made);
  }
  return MoveBatch(compute_, reader_.Read(request));
}

absl::Status AssignmentSamples::PrepareNext(const Assignment& assignment) {
  const std::optional<IndexRange> range = forecast_.After(
      assignment.data_epoch, assignment.range, order_.epoch_size());
  if (!range.has_value()) return absl::OkStatus();
  Assignment next = assignment;
  next.range = *range;
  COHORT_ASSIGN_OR_RETURN(const std::vector<int64_t> indices, IndicesOf(next));
  const SampleRequest request{
      .indices = indices,
      .augmentation = AugmentationKey{.run_seed = run_seed_,
                                      .data_epoch = next.data_epoch}};
  // The device makes such a batch of the images that it holds, unless the
  // augmentation blends pixels.
  if (batches_ != nullptr && batches_->holds() &&
      dataset_.PlacesOf(request).has_value()) {
    return absl::OkStatus();
  }
  reader_.Prepare(request);
  return absl::OkStatus();
}

}  // namespace cohort
