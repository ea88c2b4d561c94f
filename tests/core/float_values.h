#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/byte_rope.h"
#include "common/float_buffer.h"
#include "common/model_layout.h"
#include "kernels/optimizer_rules.h"
#include "server/core/model/model_snapshot.h"

namespace cohort {

inline SharedFloats BufferOf(const std::vector<float>& values) {
  auto buffer =
      std::make_shared<FloatBuffer>(static_cast<int64_t>(values.size()));
  std::copy(values.begin(), values.end(), buffer->data());
  return buffer;
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

// The bytes of `values` in pieces of 1, 2, ... `longest`, 1, 2, ... bytes.
inline ByteRope CutRope(const std::vector<float>& values, size_t longest) {
  ByteRope rope;
  absl::Span<const std::byte> left =
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()),
                          values.size() * sizeof(float));
  for (size_t size = 1; !left.empty(); size = size % longest + 1) {
    const ByteRope piece = ByteRope::Copy(left.subspan(0, size));
    rope.Append(piece.pieces()[0].bytes, piece.pieces()[0].owner);
    left = left.subspan(std::min(size, left.size()));
  }
  return rope;
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
