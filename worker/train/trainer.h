#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/assignment.h"
#include "common/mutex.h"
#include "kernels/backend.h"
#include "worker/batch_norm/binding.h"
#include "worker/client/client.h"
#include "worker/datasets/dataset.h"
#include "worker/models/model.h"
#include "worker/train/batch_reader.h"
#include "worker/train/loss.h"
#include "worker/train/scoring.h"

namespace cohort {

struct TrainerOptions {
  // Makes the model from the run's seed, so that all workers start alike.
  std::function<absl::StatusOr<std::shared_ptr<Model>>(uint64_t seed)>
      make_model;
  int64_t batch_size = 64;
  // Parts that an assignment's samples are computed in, one after another;
  // each is a batch of its own to batch norm. The same on all workers.
  int64_t accumulate = 1;
  LossOptions loss;
  // Threads that read training samples, also ahead; 0: read when needed.
  int32_t loader_threads = 0;
  // Images of one forward pass in evaluation.
  int64_t evaluation_batch_size = kEvaluationBatchSize;
  BindingOptions batch_norm;
  // Must outlive the trainer.
  const kernels::Backend* backend = nullptr;
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
  //   cannot be used, Internal if LibTorch fails. OK: the run is over, or a
  //   stop was requested; the worker has left.
  absl::Status Run();

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

  absl::Status Prepare();
  absl::Status Loop();
  absl::Status Execute(const Assignment& assignment);
  absl::Status Train(const Assignment& assignment);
  // Forward and backward of one part; gradients add up in the model, and leave
  // during the last.
  absl::Status TrainPart(const Part& part, PushClosing& sums);
  absl::Status Evaluate(const Assignment& assignment);
  absl::Status CollectMoments(const Assignment& assignment);
  absl::Status ReadWeights(const Assignment& assignment);
  // Once: frozen layers are normalised by what the server holds.
  absl::Status ReadFrozenStatistics();
  absl::Status TakeResult(const PushResult& result);
  // Errors: Internal, a range beyond the data set.
  absl::StatusOr<std::vector<int64_t>> IndicesOf(const Assignment& assignment);
  // The samples of a training or collecting assignment, augmented.
  absl::StatusOr<Batch> ReadSamples(const Assignment& assignment);
  // Has what will probably come after this assignment read meanwhile.
  absl::Status PrepareNext(const Assignment& assignment);
  bool EnterStep() ABSL_LOCKS_EXCLUDED(mu_);
  void LeaveStep() ABSL_LOCKS_EXCLUDED(mu_);

  // Fixed after construction.
  Client& client_;
  const Dataset& dataset_;
  const TrainerOptions options_;

  BatchReader reader_;
  RangeForecast forecast_;
  // The model and what belongs to it; made in Prepare.
  std::unique_ptr<State> state_;

  Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool in_step_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace cohort
