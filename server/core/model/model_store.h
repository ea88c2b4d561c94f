#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/ids.h"
#include "common/model_layout.h"
#include "server/core/model/commands.h"
#include "server/core/model/model_version.h"
#include "server/core/optimizer/slots.h"
#include "server/core/settings/options.h"
#include "server/core/statistics/statistics_sets.h"

namespace cohort {

// The divisor of all loss sums, as a power of two: dividing and multiplying by
// it is exact, so it leaves no trace in the weights, whichever rank proposes
// it.
double LossReference(const RunPlan& plan);

// The model of a run: its layout, the newest version of everything that
// training changes but weights and slots, and older versions that pushes in
// progress have read. Which slots the shards keep follows the settings.
class ModelStore {
 public:
  // False until the first registration is complete. Most of what follows needs
  // it.
  bool registered() const { return model_ != nullptr; }
  // Errors: FailedPrecondition before that.
  absl::Status CheckRegistered() const;
  const SharedModel& model() const { return model_; }
  const ModelLayout& layout() const { return model_->layout; }
  const std::vector<BatchNormSpec>& batch_norms() const {
    return model_->layout.batch_norms;
  }
  int32_t partitions() const {
    return static_cast<int32_t>(model_->partitions.size());
  }
  // The number of partitions that have a gradient.
  int32_t trainable_partitions() const { return trainable_partitions_; }
  // A batch-norm layer keeps moving statistics.
  bool TracksStatistics() const;

  // Null before registration.
  const SharedVersion& current() const { return current_; }
  // The newest; 0 before registration.
  Version version() const {
    return current_ == nullptr ? Version() : current_->version;
  }

  // Makes version 0. `statistics` has one entry a layer or none.
  // Errors: those of MaskFor.
  absl::Status Install(const ModelLayout& layout, const RunPlan& plan,
                       std::vector<LayerStatistics> statistics,
                       const CoordinatorOptions& options,
                       const PolicyOptions& policy);
  void Restore(SharedModel model, const ModelVersion& version);
  // Slots that the shards keep of each partition with gradients.
  const std::vector<SlotKind>& slots() const { return slots_; }
  // They fit slots and mask to the optimizer. No-op before registration.
  void AdoptOptimizer(const CoordinatorOptions& options,
                      const PolicyOptions& policy);
  // Keeps these kinds of moving statistics from now on. Returns what becomes of
  // those that are new, to be appended to a sentence; empty if none is, or
  // before registration.
  std::string AdoptStatistics(const OptimizerOptions& optimizer,
                              const PolicyOptions& policy);

  // The next version, or the present one with other moving statistics.
  void Publish(SharedVersion next);
  // Versions that something still refers to, ascending.
  std::vector<Version> HeldVersions();
  // Updates moving statistics with the moments of pushes.
  const std::shared_ptr<const KeptStatistics>& statistics() const {
    return statistics_;
  }

  // Adds to `plan` a new number and the version that it changes.
  CommitPlan Complete(CommitPlan plan);

  // ---- versions that pushes in progress have read
  // Keeps the present version, and forgets those before `oldest`.
  void HoldFrom(Version oldest);
  void HoldNone() { read_.clear(); }
  // The present version is kept anyway.
  bool Holds(Version version) const {
    return version == current_->version || read_.contains(version);
  }

 private:
  SharedModel model_;
  int32_t trainable_partitions_ = 0;
  SharedVersion current_;
  std::vector<SlotKind> slots_;
  std::shared_ptr<const KeptStatistics> statistics_;
  int64_t next_transaction_ = 1;
  // All that were ever current and still exist.
  std::vector<std::weak_ptr<const ModelVersion>> published_;
  std::map<Version, SharedVersion> read_;
};

}  // namespace cohort
