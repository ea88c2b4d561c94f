#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/assignment.h"
#include "common/byte_rope.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/push.h"
#include "common/timeline.h"
#include "kernels/backend.h"
#include "worker/batch_norm/binding.h"
#include "worker/batch_norm/scope.h"
#include "worker/client/client.h"
#include "worker/datasets/data_order.h"
#include "worker/datasets/dataset.h"
#include "worker/device/compute_device.h"
#include "worker/models/model.h"
#include "worker/train/batch_reader.h"
#include "worker/train/device_batches.h"
#include "worker/train/loss.h"
#include "worker/train/scoring.h"
#include "worker/train/step_phases.h"
#include "worker/train/step_sums.h"
#include "worker/train/timed_client.h"
#include "worker/train/trainer_observer.h"

namespace cohort {

struct TrainerOptions {
  // Makes the model from the run's seed, so that all workers start alike.
  std::function<absl::StatusOr<std::shared_ptr<Model>>(uint64_t seed)>
      make_model;
  int64_t batch_size = 64;
  // Parts that an assignment's samples are computed in, one after another;
  // each is a batch of its own to batch norm. The same on all workers.
  int64_t accumulate = 1;
  OrderOptions order;
  LossOptions loss;
  // Threads that read training samples, also ahead; 0: read when needed.
  int32_t loader_threads = 0;
  // Images of one forward pass in evaluation.
  int64_t evaluation_batch_size = kEvaluationBatchSize;
  BindingOptions batch_norm;
  // Must outlive the trainer, as must those below, which may be null.
  const kernels::Backend* backend = nullptr;
  // Where the model is computed; the backend is for the CPU.
  Compute compute;
  TrainerObserver* observer = nullptr;
  // Gets the steps and what they are made of, and evaluations.
  Timeline* timeline = nullptr;
};

// What a worker does: asks for an assignment, computes it, pushes the result,
// until the run is over. An assignment that becomes void (a rank was lost,
// the connection broke) is dropped and the next one asked for.
//
// Thread safety: one thread calls Run; RequestStop is safe from any.
class Trainer {
 public:
  // All must outlive the trainer.
  Trainer(Client& client, const Dataset& dataset,
          const TrainerOptions& options);
  ~Trainer();

  // Errors: those of the client that are final, InvalidArgument if the model
  //   cannot be used, ResourceExhausted naming what there was no memory for,
  //   Internal if LibTorch or the device fails. OK: the run is over, or a
  //   stop was requested; the worker has left.
  absl::Status Run();

  // After Run: the worker left before its rank's work was done: it was drained
  // or stopped, or the run broke off. False if the run is over or does not need
  // this rank.
  bool left_early() const { return left_early_; }

  // Ends Run after the step in progress, or at once between steps.
  void RequestStop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct State;

  // One part of an assignment.
  struct Part {
    Batch batch;
    // Opens the push once the forward pass is done; null: it is open.
    const PushOpening* opening = nullptr;
    bool last = true;
  };

  // What a forward pass ends with.
  struct Losses {
    at::Tensor logits;
    at::Tensor loss_sum;
    // What is differentiated.
    at::Tensor objective;
  };

  absl::Status PrepareOrTell();
  absl::Status Prepare();
  absl::StatusOr<std::shared_ptr<Model>> MakeModelOnDevice(
      uint64_t seed, const CrossEntropy& loss);
  // Tells whether the images are held by the device.
  absl::Status HoldImages();
  absl::Status Loop();
  absl::Status Execute(const Assignment& assignment);
  // As Execute; what LibTorch throws comes out as an error.
  absl::Status Compute(const Assignment& assignment);
  void Tell(TrainerState state);
  // The weights in the model are those of `version`.
  void HaveWeights(Version version);
  absl::Status Train(const Assignment& assignment);
  // Forward and backward of one part; gradients add up in the model, and leave
  // during the last.
  absl::Status TrainPart(const Part& part, StepSums& sums);
  absl::StatusOr<Losses> Forward(const Batch& batch);
  // Completes the opening with what the samples count.
  absl::StatusOr<Batch> ReadTrainingSamples(const Assignment& assignment,
                                            PushOpening& opening);
  absl::Status Evaluate(const Assignment& assignment);
  absl::Status CollectMoments(const Assignment& assignment);
  // Images that share batch statistics in training, where all workers have
  // equal batches.
  int64_t NormalisedTogether(bool global) const;
  // Those that an evaluation normalises by.
  absl::Status LoadStatistics(const Assignment& assignment);
  absl::Status ReadWeights(const Assignment& assignment);
  // Once: frozen layers are normalised by what the server holds.
  absl::Status ReadFrozenStatistics();
  absl::Status LoadWeights(absl::Span<const ByteRope> weights);
  absl::Status TakeResult(const PushResult& result);
  // What the device had no memory for, as far as is known.
  absl::Status NoMemory(const std::exception& e);
  // Errors: Internal, a range beyond the data set.
  absl::StatusOr<std::vector<int64_t>> IndicesOf(const Assignment& assignment);
  // The samples of a training or collecting assignment, augmented.
  absl::StatusOr<Batch> ReadSamples(const Assignment& assignment);
  // Has what will probably come after this assignment read meanwhile.
  absl::Status PrepareNext(const Assignment& assignment);
  bool EnterStep() ABSL_LOCKS_EXCLUDED(mu_);
  bool Stopped() ABSL_LOCKS_EXCLUDED(mu_);
  void LeaveStep() ABSL_LOCKS_EXCLUDED(mu_);

  // Fixed after construction.
  const Dataset& dataset_;
  const TrainerOptions options_;
  const SteadyClock clock_;

  StepPhases phases_;
  TimedClient client_;
  // Of the step in progress, once it has its verdict.
  std::optional<StepReport> report_;

  BatchReader reader_;
  bool left_early_ = false;
  // Of the pass in progress.
  LayerMark reached_;
  std::string batch_text_;
  RangeForecast forecast_;
  // The model and what belongs to it; made in Prepare.
  std::unique_ptr<State> state_;

  Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool in_step_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace cohort
