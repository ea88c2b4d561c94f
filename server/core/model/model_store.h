#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/float_buffer.h"
#include "common/ids.h"
#include "common/model_layout.h"
#include "server/core/data/commit_plan.h"
#include "server/core/data/shard_place.h"
#include "server/core/model/model_snapshot.h"
#include "server/core/optimizer/mask.h"
#include "server/core/options.h"
#include "server/core/statistics_sets.h"

namespace cohort {

// The model of a run: its layout, the newest version of everything that
// training changes, and older versions that pushes under way have read. What
// the optimizer needs of it (slots, the mask of frozen elements) follows the
// settings.
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
  // Those that have a gradient.
  int32_t trainable_partitions() const { return trainable_partitions_; }
  // A batch-norm layer keeps moving statistics.
  bool TracksStatistics() const;

  // Null before registration.
  const SharedSnapshot& current() const { return current_; }
  // The newest; 0 before registration.
  Version version() const {
    return current_ == nullptr ? Version() : current_->version;
  }

  // Makes version 0. `values` has one buffer a partition, `statistics` one
  // entry a layer or none. Returns it with the weights of all partitions; with
  // several shards, this one keeps only its own.
  // Errors: those of MaskFor.
  absl::StatusOr<SharedSnapshot> Install(
      const ModelLayout& layout, const RunPlan& plan,
      std::vector<SharedFloats> values, std::vector<LayerStatistics> statistics,
      const CoordinatorOptions& options, const PolicyOptions& policy);
  // Takes the own partitions of `snapshot`, if there are several shards.
  void Restore(SharedModel model, SharedSnapshot snapshot, int32_t shards);
  // Fits slots and mask to the optimizer. No-op before registration.
  void AdoptOptimizer(const CoordinatorOptions& options,
                      const PolicyOptions& policy);
  // Keeps these kinds of moving statistics from now on. Returns what becomes of
  // those that are new, to be appended to a sentence; empty if none is, or
  // before registration.
  std::string AdoptStatistics(const OptimizerOptions& optimizer,
                              const PolicyOptions& policy);

  // The next version.
  void PublishVersion(SharedSnapshot next);
  // With several shards: versions that something still refers to, ascending.
  std::vector<Version> HeldVersions();
  // The same version with other moving statistics.
  void PublishStatistics(StatisticsSets sets);
  // Updates moving statistics with the moments of pushes.
  const std::shared_ptr<const KeptStatistics>& statistics() const {
    return statistics_;
  }

  // Adds to `plan` what this knows: a new number, the model, what is changed
  // and the mask.
  CommitPlan Complete(CommitPlan plan);

  // ---- versions that pushes under way have read
  // Keeps the present version, and forgets those before `oldest`.
  void HoldFrom(Version oldest);
  void HoldNone() { read_.clear(); }
  // The present version or one that is held.
  SharedSnapshot Held(Version version) const;

 private:
  // Also the same version, changed.
  void Publish(SharedSnapshot next);

  SharedModel model_;
  int32_t trainable_partitions_ = 0;
  SharedSnapshot current_;
  // Frozen elements. Null: none.
  SharedMask mask_;
  std::shared_ptr<const KeptStatistics> statistics_;
  int64_t next_transaction_ = 1;
  ShardPlace place_;
  // With several shards: all that were ever current and still exist.
  std::vector<std::weak_ptr<const ModelSnapshot>> published_;
  std::map<Version, SharedSnapshot> read_;
  // Those of the present version before settings were changed at it. Each
  // change starts from them, so that what the settings are, and not how they
  // came to be so, says what the slots are; data shards do the same.
  std::vector<Slots> committed_slots_;
};

}  // namespace cohort
