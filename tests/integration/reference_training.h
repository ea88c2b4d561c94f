#pragma once

#include <torch/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/assignment.h"
#include "server/core/settings/options.h"
#include "server/main/endings.h"
#include "worker/datasets/dataset.h"

namespace cohort {

// One float64 tensor for each state-dict name.
using StateTensors = std::map<std::string, at::Tensor>;

// The samples of one step.
struct ReferenceStep {
  // Positions in the epoch's permutation, one range for each worker.
  std::vector<IndexRange> ranges;
  // Samples handed out before this step, for the schedule.
  int64_t clock = 0;
};

struct ReferenceOptions {
  std::string model;
  const Dataset* dataset = nullptr;
  // The batch size of the whole cohort.
  int64_t batch_size = 0;
  OptimizerOptions optimizer;
  uint64_t seed = 1;
  // If true, each range is normalised separately; moving statistics then have
  // no meaning.
  bool local = false;
  // The type of the arithmetic.
  at::ScalarType type = at::kDouble;
};

// Trains one epoch in one process. Only the initial values and the order of
// samples are Cohort's; batch norm over the joined batch and SGD are
// LibTorch's.
StateTensors TrainReference(const ReferenceOptions& options);
// The same with the given steps of the first epoch.
StateTensors TrainReference(const ReferenceOptions& options,
                            const std::vector<ReferenceStep>& steps);

// The tensors of a finished run.
StateTensors StateOf(const RunSummary& summary);

// ||a - b|| / ||b||; the second over all tensors together.
double RelativeDistance(const at::Tensor& a, const at::Tensor& b);
double RelativeDistance(const StateTensors& a, const StateTensors& b);

}  // namespace cohort
