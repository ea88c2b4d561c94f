#pragma once

#include <torch/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/assignment.h"
#include "server/core/options.h"
#include "server/main/server.h"
#include "worker/datasets/dataset.h"

namespace cohort {

// One tensor a state-dict name, float64.
using StateTensors = std::map<std::string, at::Tensor>;

// The samples of one step.
struct ReferenceStep {
  // Positions in the epoch's permutation, one range a worker.
  std::vector<IndexRange> ranges;
  // Samples that were handed out before it: the clock of the schedule.
  int64_t clock = 0;
};

struct ReferenceOptions {
  std::string model;
  const Dataset* dataset = nullptr;
  // Of the whole cohort.
  int64_t batch_size = 0;
  OptimizerOptions optimizer;
  uint64_t seed = 1;
  // Each range is normalised by itself; moving statistics then mean nothing.
  bool local = false;
  // Of the arithmetic.
  at::ScalarType type = at::kDouble;
};

// Trains one epoch in one process with nothing of Cohort's but the initial
// values and the order of samples: LibTorch's own batch norm over the joined
// batch, LibTorch's own SGD.
StateTensors TrainReference(const ReferenceOptions& options);
// The same with these steps of the first epoch.
StateTensors TrainReference(const ReferenceOptions& options,
                            const std::vector<ReferenceStep>& steps);

// What a finished run holds.
StateTensors StateOf(const RunSummary& summary);

// ||a - b|| / ||b||, and over all tensors at once.
double RelativeDistance(const at::Tensor& a, const at::Tensor& b);
double RelativeDistance(const StateTensors& a, const StateTensors& b);

}  // namespace cohort
