#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "common/timeline.h"
#include "kernels/backend.h"
#include "worker/batch_norm/binding.h"
#include "worker/datasets/data_order.h"
#include "worker/device/compute_device.h"
#include "worker/models/model.h"
#include "worker/telemetry/trainer_observer.h"
#include "worker/train/local_steps.h"
#include "worker/train/loss.h"
#include "worker/train/parameter_groups.h"
#include "worker/train/scoring.h"

namespace cohort {

struct TrainerOptions {
  // Creates the model from the run's seed, so that all workers start with equal
  // weights.
  std::function<absl::StatusOr<std::shared_ptr<Model>>(uint64_t seed)>
      make_model;
  int64_t batch_size = 64;
  // Number of parts that each batch of an assignment is computed in, one after
  // another; each is a separate batch to batch norm. The same on all workers.
  int64_t accumulate = 1;
  // With the server's --local_steps.
  LocalOptimizerOptions local_optimizer;
  OrderOptions order;
  // Must be equal on all workers.
  std::vector<ParameterGroup> groups;
  LossOptions loss;
  // Threads that read training samples, also ahead of need. With 0, samples are
  // read when needed.
  int32_t loader_threads = 0;
  // Images of one forward pass in evaluation.
  int64_t evaluation_batch_size = kEvaluationBatchSize;
  BindingOptions batch_norm;
  // Must outlive the trainer, as must the pointers below, which may be null.
  const kernels::Backend* backend = nullptr;
  // Where the model is computed; the backend is for the CPU.
  Compute compute;
  TrainerObserver* observer = nullptr;
  // Records steps, their phases, and evaluations.
  Timeline* timeline = nullptr;
};

}  // namespace cohort
