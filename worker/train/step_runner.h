#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/assignment.h"
#include "common/ids.h"
#include "common/push.h"
#include "worker/batch_norm/binding.h"
#include "worker/batch_norm/scope.h"
#include "worker/client/client.h"
#include "worker/datasets/dataset.h"
#include "worker/models/model.h"
#include "worker/train/assignment_samples.h"
#include "worker/train/gradient_sender.h"
#include "worker/train/loss.h"
#include "worker/train/run_weights.h"
#include "worker/train/step_phases.h"
#include "worker/train/step_sums.h"
#include "worker/train/trainer_observer.h"
#include "worker/train/trainer_options.h"

namespace cohort {

// Computes assignments, one after another: reads samples and weights, runs the
// model, and hands the client what comes of it.
//
// Thread safety: one thread calls.
class StepRunner {
 public:
  // Made once the worker has joined and registered.
  struct Parts {
    std::shared_ptr<Model> model;
    CrossEntropy loss;
    BatchNormBinding binding;
    // Neither may be null.
    std::unique_ptr<RunWeights> weights;
    std::unique_ptr<AssignmentSamples> samples;
    // The run's.
    uint64_t seed = 0;
    Rank rank;
    int32_t workers = 1;
    double loss_reference = 1;
    // See GradientSender.
    std::vector<int32_t> send_order;
  };

  // All but the parts must outlive it.
  StepRunner(Client& client, const Dataset& dataset,
             const TrainerOptions& options, StepPhases& phases, Parts parts);
  StepRunner(const StepRunner&) = delete;
  StepRunner& operator=(const StepRunner&) = delete;

  // Trains, evaluates or collects moments. What LibTorch throws comes out as
  // an error.
  // Errors: those of the client; ResourceExhausted naming what there was no
  //   memory for; Internal if LibTorch or the device fails.
  absl::Status Run(const Assignment& assignment);

  // The step that the last call made, if it has its verdict.
  const std::optional<StepReport>& report() const { return report_; }

 private:
  // One part of an assignment.
  struct Part {
    Batch batch;
    // Opens the push once the forward pass is done; null: it is open.
    const PushOpening* opening = nullptr;
    bool last = true;
  };

  // The outcome of a forward pass.
  struct Losses {
    at::Tensor logits;
    at::Tensor loss_sum;
    // This one is differentiated.
    at::Tensor objective;
  };

  absl::Status Train(const Assignment& assignment);
  // Forward and backward of one part; gradients add up in the model, and leave
  // during the last.
  absl::Status TrainPart(const Part& part, StepSums& sums);
  absl::StatusOr<Losses> Forward(const Batch& batch);
  // Completes the opening with what the samples count.
  absl::StatusOr<Batch> ReadTrainingSamples(const Assignment& assignment,
                                            PushOpening& opening);
  absl::Status CollectMoments(const Assignment& assignment);
  absl::Status Evaluate(const Assignment& assignment);
  // Images that share batch statistics in training, where all workers have
  // equal batches.
  int64_t NormalisedTogether(bool global) const;
  absl::Status ReadWeights(const Assignment& assignment);
  // Once: frozen layers are normalised by what the server holds.
  absl::Status ReadFrozenStatistics();
  // Those that an evaluation normalises by.
  absl::Status LoadStatistics(const Assignment& assignment);
  // Names what the device had no memory for, as far as is known.
  absl::Status NoMemory(const std::exception& e);

  // Fixed after construction.
  const Dataset& dataset_;
  const TrainerOptions& options_;
  Client& client_;
  StepPhases& phases_;

  Parts parts_;
  // Refers to the weights.
  GradientSender gradients_;
  bool frozen_statistics_read_ = false;
  std::optional<StepReport> report_;
  // How far the pass in progress has come, and its batch; for NoMemory.
  LayerMark reached_;
  std::string batch_text_;
};

}  // namespace cohort
