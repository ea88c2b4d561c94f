#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/float_buffer.h"
#include "common/model_layout.h"
#include "common/permutation.h"
#include "kernels/optimizer_rules.h"
#include "server/core/model/model_snapshot.h"

namespace cohort {

inline SharedFloats BufferOf(const std::vector<float>& values) {
  auto buffer =
      std::make_shared<FloatBuffer>(static_cast<int64_t>(values.size()));
  std::copy(values.begin(), values.end(), buffer->data());
  return buffer;
}

// Uniform in [-amplitude, amplitude).
inline std::vector<float> DrawFloats(SplitMix64& random, int64_t count,
                                     double amplitude) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    value = static_cast<float>(amplitude * (2 * random.Uniform() - 1));
  }
  return values;
}

// Parameters "a", "b", ... of one element, each a partition.
inline std::shared_ptr<RegisteredModel> ModelOfOnes(int32_t parameters) {
  auto model = std::make_shared<RegisteredModel>();
  for (char name = 'a'; name < 'a' + parameters; ++name) {
    model->layout.parameters.push_back(
        {.name = std::string(1, name), .shape = {1}});
  }
  model->plan.loss_reference = 1;
  model->partitions = MakePartitions(model->layout, sizeof(float));
  return model;
}

// Version 7 of a model, or another one.
inline std::shared_ptr<ModelSnapshot> SnapshotWith(
    std::vector<SharedFloats> weights, int64_t version = 7) {
  auto snapshot = std::make_shared<ModelSnapshot>();
  snapshot->version = Version(version);
  snapshot->slots.resize(weights.size());
  snapshot->weights = std::move(weights);
  return snapshot;
}

// A step of SGD, or of another rule of it.
struct SgdNumbers {
  double scale = 1;
  double rate = 0;
  double decay = 0;
  double momentum = 0;
};
inline kernels::RuleStep StepOf(const SgdNumbers& of,
                                OptimizerKind kind = OptimizerKind::kMomentum) {
  return kernels::RuleOf(kind).step({.numbers = {.momentum = of.momentum},
                                     .rate = of.rate,
                                     .decay = of.decay,
                                     .gradient_scale = of.scale});
}
inline kernels::RuleStep PlainStep(const SgdNumbers& of) {
  return StepOf(of, OptimizerKind::kSgd);
}

inline std::vector<float> ValuesOf(const SharedFloats& buffer) {
  return {buffer->span().begin(), buffer->span().end()};
}

}  // namespace cohort
