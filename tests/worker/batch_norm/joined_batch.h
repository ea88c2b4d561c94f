#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "common/moments.h"
#include "kernels/backend.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace cohort {

// One batch-norm layer, and how a model calls it.
struct LayerConfig {
  bool affine = true;
  bool track = true;
  std::optional<double> momentum = 0.1;
  // The module is in eval mode while the model trains.
  bool eval = false;
  // Scale and shift need no gradient.
  bool frozen_affine = false;
  // Uses the functions of functional.h instead of the module's forward.
  bool own_call = false;
  bool relu = false;
  // With relu: there is an addend before it.
  bool add = false;
  // Without relu: number of calls. Call i gets (i + 1) * x, and the outputs are
  // added up.
  int32_t calls = 1;
};

// Inputs, upstream gradients and parameters of one step; one entry of x, z and
// dy a worker.
struct Case {
  std::vector<at::Tensor> x;
  // Added before the ReLU.
  std::vector<at::Tensor> z;
  std::vector<at::Tensor> dy;
  at::Tensor gamma;
  at::Tensor beta;
  at::Tensor running_mean;
  at::Tensor running_var;
};

struct Outcome {
  at::Tensor y;
  at::Tensor dx;
  // Undefined if the configuration has no such gradient.
  at::Tensor dz;
  at::Tensor dgamma;
  at::Tensor dbeta;
  // One worker's contributions to forward rendezvous.
  std::vector<CallMoments> moments;
};

// Workers with `rows` rows each of [rows, channels, rest...]. Scale, shift and
// statistics of half types are float32.
Case RandomCase(const std::vector<int64_t>& rows, int64_t channels,
                const std::vector<int64_t>& rest, at::ScalarType type,
                uint64_t seed = 7);

// A one-layer model for inputs of `dims` dimensions with a case's parameters
// and statistics, of the type of its gamma.
struct Layer {
  std::shared_ptr<torch::nn::Module> module;
  // Maps (x, z) to y: `own` as the configuration says, `stock` with LibTorch's
  // module and operators only.
  std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> own;
  std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> stock;
};
Layer MakeLayer(int64_t dims, const LayerConfig& config, const Case& values);
// The same for the inputs of the case, in float64.
Layer Float64Layer(const LayerConfig& config, const Case& values);

// Every worker in a separate thread, in one step.
std::vector<Outcome> RunCohort(const LayerConfig& config, const Case& values,
                               const kernels::Backend& backend);

// The stock layer in float64 on the joined batch. Leaves its statistics in
// `layer`, which is of float64.
Outcome RunJoined(Layer& layer, const LayerConfig& config, const Case& values);

// Largest errors, relative to 1 + |wanted|.
struct Tolerance {
  // For y, dx and dz.
  double tensors = 1e-10;
  // For the gradients of scale and shift, summed over workers.
  double parameters = 1e-10;
};

::testing::AssertionResult Close(const at::Tensor& seen,
                                 const at::Tensor& wanted, double tolerance);

// Expects that the workers' joined results equal those of the joined batch.
void ExpectSame(const std::vector<Outcome>& parts, const Outcome& whole,
                const Case& values, const Tolerance& tolerance);

// Runs both functions above in one step with a new layer, and compares.
void ExpectEqualsJoinedBatch(const LayerConfig& config, const Case& values,
                             const kernels::Backend& backend,
                             const Tolerance& tolerance);

}  // namespace cohort
