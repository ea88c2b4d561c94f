#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/assignment.h"
#include "common/ids.h"
#include "common/push.h"
#include "worker/batch_norm/binding.h"
#include "worker/batch_norm/scope.h"
#include "worker/datasets/dataset.h"
#include "worker/models/model.h"
#include "worker/session/worker_session.h"
#include "worker/train/assignment_samples.h"
#include "worker/train/gradient_hooks.h"
#include "worker/train/local_steps.h"
#include "worker/train/loss.h"
#include "worker/train/model_weights.h"
#include "worker/train/step_sums.h"
#include "worker/train/trainer_options.h"

namespace cohort {

// Computes assignments, one after another: reads samples, runs the model, and
// passes the results to the session.
//
// Thread safety: one thread calls.
class StepRunner {
 public:
  // Created once the worker has joined and registered.
  struct Parts {
    // Neither pointer may be null.
    std::shared_ptr<Model> model;
    CrossEntropy loss;
    BatchNormBinding binding;
    ModelWeights weights;
    std::unique_ptr<AssignmentSamples> samples;
    // The seed of the run.
    uint64_t seed = 0;
    Rank rank;
    int32_t workers = 1;
  };

  // All arguments except the parts must outlive it.
  StepRunner(WorkerSession& session, const Dataset& dataset,
             const TrainerOptions& options, Parts parts);
  StepRunner(const StepRunner&) = delete;
  StepRunner& operator=(const StepRunner&) = delete;

  // Trains, evaluates or collects moments. The session must have begun the
  // assignment. LibTorch's exceptions are returned as errors.
  // Errors: those of the session; ResourceExhausted naming what there was no
  //   memory for; Internal if LibTorch or the device fails.
  absl::Status Run(const Assignment& assignment);

 private:
  // One part of an assignment.
  struct Part {
    Batch batch;
    // Opens the push once the forward pass is done. Null if it is open already.
    const PushOpening* opening = nullptr;
    bool last = true;
  };

  // The outcome of a forward pass.
  struct Losses {
    at::Tensor logits;
    at::Tensor loss_sum;
    // The loss that is differentiated.
    at::Tensor objective;
  };

  absl::Status Train(const Assignment& assignment);
  // Trains by local steps.
  absl::Status TrainLocally(const Assignment& assignment);
  // One of them, over the assignment's range, in the next parts of the context.
  // Adds its samples to the opening.
  absl::Status LocalStep(const Assignment& assignment, StepContext& context,
                         LocalSteps& steps, StepSums& sums,
                         PushOpening& opening);
  // Everything that a step draws at random follows from it.
  void SeedStep() const;
  // Runs forward and backward pass of one part. Gradients add up in the model
  // and are sent during the last part.
  absl::Status TrainPart(const Part& part, StepSums& sums);
  absl::StatusOr<Losses> Forward(const Batch& batch);
  // Completes `opening` with the number and weight of the samples.
  absl::StatusOr<Batch> ReadTrainingSamples(const Assignment& assignment,
                                            PushOpening& opening);
  absl::Status CollectMoments(const Assignment& assignment);
  absl::Status Evaluate(const Assignment& assignment);
  // Number of images that share batch statistics in training, if all workers
  // have equal batches.
  int64_t NormalisedTogether(bool global) const;
  absl::Status ReadWeights(const Assignment& assignment);
  // Reads the server's statistics of the frozen layers; once only.
  absl::Status ReadFrozenStatistics();
  // Loads the moving statistics that an evaluation uses.
  absl::Status LoadStatistics(const Assignment& assignment);
  // An error that names what the device had no memory for, as far as known.
  absl::Status NoMemory(const std::exception& e);

  // Fixed after construction.
  const Dataset& dataset_;
  const TrainerOptions& options_;
  WorkerSession& session_;

  Parts parts_;
  GradientHooks hooks_;
  bool frozen_statistics_read_ = false;
  // How far the pass in progress has come, and its batch; for NoMemory.
  LayerMark reached_;
  std::string batch_text_;
};

}  // namespace cohort
