#pragma once

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "worker/client/client.h"
#include "worker/datasets/dataset.h"
#include "worker/models/model.h"
#include "worker/session/model_memory.h"
#include "worker/session/worker_session.h"
#include "worker/train/loss.h"
#include "worker/train/step_runner.h"
#include "worker/train/trainer_options.h"

namespace cohort {

// The main loop of a worker: requests an assignment, computes it and pushes the
// result, until the run is over. If an assignment becomes void (a rank was
// lost, the connection broke), it is dropped and the next one requested.
//
// Thread safety: one thread calls Run; RequestStop is safe from any.
class Trainer {
 public:
  // All arguments must outlive the trainer.
  Trainer(Client& client, const Dataset& dataset,
          const TrainerOptions& options);
  ~Trainer();

  // Errors: those of the client that are final, InvalidArgument if the model
  //   cannot be used, ResourceExhausted naming what there was no memory for,
  //   Internal if LibTorch or the device fails. OK if the run is over or a stop
  //   was requested; the worker has then left.
  absl::Status Run();

  // After Run: whether the worker left before its rank's work was done, because
  // it was drained or stopped, or the run broke off. False if the run is over
  // or no longer needs this rank.
  bool left_early() const { return left_early_; }

  // Ends Run after the step in progress, or at once between steps.
  void RequestStop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Status PrepareOrTell();
  absl::Status Prepare();
  absl::StatusOr<std::shared_ptr<Model>> MakeModelOnDevice(
      uint64_t seed, const CrossEntropy& loss);
  absl::Status Loop();
  bool EnterStep() ABSL_LOCKS_EXCLUDED(mu_);
  bool Stopped() ABSL_LOCKS_EXCLUDED(mu_);
  void LeaveStep() ABSL_LOCKS_EXCLUDED(mu_);

  // Fixed after construction.
  const Dataset& dataset_;
  const TrainerOptions options_;

  WorkerSession session_;
  bool left_early_ = false;
  // Created in Prepare.
  std::unique_ptr<ModelMemory> memory_;
  std::unique_ptr<StepRunner> steps_;

  Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool in_step_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace cohort
