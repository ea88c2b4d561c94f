#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/byte_rope.h"
#include "common/float_buffer.h"
#include "common/ids.h"
#include "server/core/model/commands.h"
#include "server/core/model/model_snapshot.h"
#include "server/core/optimizer/mask.h"
#include "server/core/settings/options.h"
#include "server/core/settings/settings.h"
#include "server/partitions/fold_job.h"
#include "server/partitions/fold_stage.h"

namespace cohort {

// Weights of one partition on their way to a worker.
struct PartitionWeights {
  SharedFloats weights;
  // As in FoldResult; empty if they go as they are.
  ByteRope change;
  uint64_t change_checksum = 0;
};

// The model, and a version with weights and slots of the shard's partitions.
// Missing slots that the settings need have their initial values.
struct Installation {
  ShardPlace place;
  SharedModel model;
  SharedSnapshot snapshot;
  // Only the settings count.
  CoordinatorOptions settings;
};

// What is installed at `place`, from a version with all partitions.
Installation InstallationOf(const ShardPlace& place, const SharedModel& model,
                            const SharedSnapshot& whole,
                            const CoordinatorOptions& settings);

// The state of a shard, beside a FoldStage: the model, the settings, and the
// versions of its partitions that may still be read. It does what the core
// tells it and decides nothing. An error means that the two do not agree; the
// caller of one in another process ends the connection, and all start again
// from the newest checkpoint.
//
// Thread safety: none.
class Partitions {
 public:
  // Errors: InvalidArgument: the model, the version or the settings do not fit
  //   each other.
  static absl::StatusOr<Partitions> Install(const Installation& install);

  const ShardPlace& place() const { return place_; }
  const SharedModel& model() const { return model_; }
  // In the cohort, or the most of an elastic one.
  int32_t workers() const { return options_.workers; }

  // The folds that are complete with the gradient.
  // Errors: FailedPrecondition: it is another shard's, or held already.
  absl::StatusOr<std::vector<FoldJob>> Hold(HeldGradient gradient);
  FoldReport FoldDone(FoldResult result) {
    return data_.FoldDone(std::move(result));
  }

  // Consequences of a command.
  struct Consequences {
    // To be run.
    std::vector<FoldJob> folds;
    // To be sent to the worker that the command names.
    std::optional<PartitionWeights> weights;
    // To be freed, without a lock.
    std::vector<HeldGradient> dropped;
    std::optional<Transaction> over;
  };
  // Carry out a command. Take, Refuse and EndRun need more than is here.

  // Errors: InvalidArgument: an unknown setting or value.
  absl::StatusOr<Consequences> Carry(const command::Adopt& adopt);
  absl::StatusOr<Consequences> Carry(const command::Drop& drop) {
    return Consequences{.dropped = data_.Drop(drop.push)};
  }
  // Errors: FailedPrecondition: another base than the newest version, or
  //   another transaction is open than that of the update before; OutOfRange: a
  //   version that is not held.
  absl::StatusOr<Consequences> Carry(const command::Prepare& prepare);
  // The folds of the next pass; none if the transaction is over.
  // Errors: FailedPrecondition: the pass before has not ended here;
  //   InvalidArgument: factors of another model.
  absl::StatusOr<Consequences> Carry(const command::Scale& scale);
  // Errors: FailedPrecondition: it is not prepared, or does not lead to this
  //   version.
  absl::StatusOr<Consequences> Carry(const command::Commit& commit);
  absl::StatusOr<Consequences> Carry(const command::Abort& abort);
  // Errors: OutOfRange: neither a held version nor prepared.
  absl::StatusOr<Consequences> Carry(const command::SendWeights& send) const;

  Version newest() const { return current_->version; }
  // The core may have committed `version`, or be about to, while the command is
  // on its way here.
  bool MayCome(Version version) const;
  // As it was committed, with the slots of the settings of that time. Null if
  // it is not held.
  SharedSnapshot Read(Version version) const;

 private:
  Partitions() = default;

  // Fits mask and slots of `current_` to the settings.
  absl::Status Fit();
  void Publish(SharedSnapshot next, const std::vector<Version>& held);
  absl::Status CheckFollows(Version version) const;
  // A transaction of this plan may begin.
  bool MayBegin(const CommitPlan& plan) const;

  ShardPlace place_;
  SharedModel model_;
  // Only the settings count.
  CoordinatorOptions options_;
  SharedMask mask_;
  // What the next step begins with.
  SharedSnapshot current_;
  // By version, as it was committed: a change of settings alters what the next
  // step begins with, and not what is still read. The newest is among them.
  std::map<Version, SharedSnapshot> held_;
  FoldStage data_;
};

}  // namespace cohort
