#pragma once

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/assignment.h"
#include "common/byte_rope.h"
#include "common/ids.h"
#include "worker/client/client.h"
#include "worker/client/held_version.h"
#include "worker/device/compute_device.h"
#include "worker/telemetry/trainer_observer.h"
#include "worker/train/model_weights.h"
#include "worker/train/weight_transfer.h"

namespace cohort {

// The weights in the model: tracks their version, and loads other versions.
//
// Thread safety: one thread calls.
class RunWeights {
 public:
  // Call once the worker has joined and registered; `weights` must have its
  // partitions. `client` must outlive it, and so must `observer`, which may be
  // null.
  static absl::StatusOr<std::unique_ptr<RunWeights>> Make(
      Client& client, const Compute& compute, ModelWeights weights,
      TrainerObserver* observer);
  // Other objects refer to the weights in it.
  RunWeights(const RunWeights&) = delete;
  RunWeights& operator=(const RunWeights&) = delete;

  ModelWeights& model() { return weights_; }
  // Null on the CPU.
  WeightTransfer* transfer() { return transfer_.get(); }

  // Absent if the weights are not a version of the server's.
  const std::optional<Version>& version() const { return held_.version(); }

  // Loads the weights that the assignment is computed from. Afterwards there is
  // a version.
  // Errors: those of Client::Pull.
  absl::Status Read(const Assignment& assignment);
  // Moves on to the weights that answered a push.
  absl::Status Take(const PushResult& result);

 private:
  RunWeights(Client& client, ModelWeights weights, TrainerObserver* observer)
      : client_(client),
        observer_(observer),
        weights_(std::move(weights)),
        held_(client.incarnation()) {}

  absl::Status Load(absl::Span<const ByteRope> weights);
  // Records that the weights in the model are those of `version`, and how they
  // were read.
  void Have(Version version, const PullOptions& read = {});

  // Fixed after construction.
  Client& client_;
  TrainerObserver* const observer_;

  ModelWeights weights_;
  // Refers to `weights_`.
  std::unique_ptr<WeightTransfer> transfer_;
  HeldVersion held_;
};

}  // namespace cohort
