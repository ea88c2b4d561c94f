#pragma once

#include <torch/types.h>

#include <cstdint>
#include <map>
#include <string>

#include "server/core/options.h"
#include "server/service/server.h"
#include "worker/datasets/dataset.h"

namespace cohort {

// One tensor a state-dict name, float64.
using StateTensors = std::map<std::string, at::Tensor>;

struct ReferenceOptions {
  std::string model;
  const Dataset* dataset = nullptr;
  // Of the whole cohort.
  int64_t batch_size = 0;
  OptimizerOptions optimizer;
  uint64_t seed = 1;
  // Of the arithmetic.
  at::ScalarType type = at::kDouble;
};

// Trains one epoch in one process with nothing of Cohort's but the initial
// values and the order of samples: LibTorch's own batch norm over the joined
// batch, LibTorch's own SGD.
StateTensors TrainReference(const ReferenceOptions& options);

// What a finished run holds.
StateTensors StateOf(const RunSummary& summary);

// ||a - b|| / ||b||, and over all tensors at once.
double RelativeDistance(const at::Tensor& a, const at::Tensor& b);
double RelativeDistance(const StateTensors& a, const StateTensors& b);

}  // namespace cohort
