#include "tests/kernels/reference/reference_backend.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/channel_factors.h"
#include "kernels/data_type.h"

namespace cohort::kernels {
namespace {

// Calls f(element, channel) for every element, in the order of the memory.
template <typename F>
void ForEachElement(const BatchShape& shape, F f) {
  int64_t element = 0;
  for (int64_t o = 0; o < shape.outer; ++o) {
    for (int64_t c = 0; c < shape.channels; ++c) {
      for (int64_t i = 0; i < shape.inner; ++i) f(element++, c);
    }
  }
}

// Two passes, unlike the fast backends: the mean first, then the squares
// around it, so that an error in the one-pass formula cannot hide.
template <typename T>
void ReferenceMoments(const MomentsArgs& args) {
  const BatchShape& shape = args.shape;
  const T* x = static_cast<const T*>(args.x);
  std::fill_n(args.mean, shape.channels, 0.0);
  std::fill_n(args.m2, shape.channels, 0.0);
  if (shape.count() == 0) return;
  const auto first = [&](int64_t c) {
    return static_cast<double>(x[c * shape.inner]);
  };
  ForEachElement(shape, [&](int64_t i, int64_t c) {
    args.mean[c] += static_cast<double>(x[i]) - first(c);
  });
  const double n = static_cast<double>(shape.count());
  for (int64_t c = 0; c < shape.channels; ++c) {
    args.mean[c] = first(c) + args.mean[c] / n;
  }
  ForEachElement(shape, [&](int64_t i, int64_t c) {
    const double d = static_cast<double>(x[i]) - args.mean[c];
    args.m2[c] += d * d;
  });
}

template <typename T>
void ReferenceNormalize(const NormalizeArgs& args) {
  const T* x = static_cast<const T*>(args.x);
  const T* add = static_cast<const T*>(args.add);
  T* y = static_cast<T*>(args.y);
  const std::vector<ChannelFactors> factors = NormalizeFactors(args);
  ForEachElement(args.shape, [&](int64_t i, int64_t c) {
    double value = NormalizeOne(static_cast<double>(x[i]), factors[c]);
    if (add != nullptr) value += static_cast<double>(add[i]);
    y[i] = static_cast<T>(args.relu ? ReluOne(value) : value);
  });
}

template <typename T>
void ReferenceBackwardReduce(const BackwardReduceArgs& args) {
  const T* x = static_cast<const T*>(args.x);
  const T* dy = static_cast<const T*>(args.dy);
  const T* y = static_cast<const T*>(args.y);
  T* dz = args.relu ? static_cast<T*>(args.dz) : nullptr;
  std::vector<ChannelFactors> factors;
  if (args.relu && y == nullptr) factors = NormalizeFactors(args);
  std::fill_n(args.sum_dy, args.shape.channels, 0.0);
  std::fill_n(args.sum_dy_xmu, args.shape.channels, 0.0);
  ForEachElement(args.shape, [&](int64_t i, int64_t c) {
    const auto value = static_cast<double>(x[i]);
    auto g = static_cast<double>(dy[i]);
    if (args.relu) {
      g = MaskOne<T>(y != nullptr ? static_cast<double>(y[i])
                                  : NormalizeOne(value, factors[c]),
                     g);
    }
    if (dz != nullptr) dz[i] = static_cast<T>(g);
    args.sum_dy[c] += g;
    args.sum_dy_xmu[c] += g * (value - args.mean[c]);
  });
}

template <typename T>
void ReferenceBackwardElementwise(const BackwardElementwiseArgs& args) {
  if (args.shape.count() == 0) return;
  const T* x = static_cast<const T*>(args.x);
  const T* dy = static_cast<const T*>(args.dy);
  T* dx = static_cast<T*>(args.dx);
  const std::vector<ChannelFactors> factors = BackwardFactors(args);
  ForEachElement(args.shape, [&](int64_t i, int64_t c) {
    const auto value = static_cast<double>(x[i]);
    auto g = static_cast<double>(dy[i]);
    if (args.relu) g = MaskOne<T>(NormalizeOne(value, factors[c]), g);
    dx[i] = static_cast<T>(args.sum_dy == nullptr
                               ? g * factors[c].scale
                               : BackwardOne(value, g, factors[c]));
  });
}

float FoldedGradient(absl::Span<const std::byte* const> gradients, float scale,
                     int64_t i) {
  double sum = 0;
  for (const std::byte* gradient : gradients) {
    float value;
    std::memcpy(&value, gradient + i * sizeof(float), sizeof(value));
    sum += static_cast<double>(value);
  }
  return scale * static_cast<float>(sum);
}

class PlainBackend final : public Backend {
 public:
  absl::string_view name() const override { return "reference"; }

  void Moments(const MomentsArgs& args) const override {
    VisitType(args.type, [&]<typename T>(std::type_identity<T>) {
      ReferenceMoments<T>(args);
    });
  }

  void Normalize(const NormalizeArgs& args) const override {
    VisitType(args.type, [&]<typename T>(std::type_identity<T>) {
      ReferenceNormalize<T>(args);
    });
  }

  void BackwardReduce(const BackwardReduceArgs& args) const override {
    VisitType(args.type, [&]<typename T>(std::type_identity<T>) {
      ReferenceBackwardReduce<T>(args);
    });
  }

  void BackwardElementwise(const BackwardElementwiseArgs& args) const override {
    VisitType(args.type, [&]<typename T>(std::type_identity<T>) {
      ReferenceBackwardElementwise<T>(args);
    });
  }

  bool FoldGradient(const GradientRun& run) const override {
    bool finite = true;
    for (int64_t i = 0; i < run.count; ++i) {
      run.out[i] = FoldedGradient(run.gradients, run.scale, i);
      finite = finite && std::isfinite(run.out[i]);
    }
    return finite;
  }

  double SumOfSquares(absl::Span<const float> x) const override {
    double sums[8] = {};
    for (size_t i = 0; i < x.size(); ++i) {
      const double value = x[i];
      sums[i % 8] += value * value;
    }
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
           ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  }

  // SGD and Adam, in plain loops; the bits of the other rules are compared
  // between the instruction sets.
  bool Update(const RuleStep& step, const GradientRun& gradient,
              const UpdateRun& run) const override {
    std::vector<float> mean(static_cast<size_t>(gradient.count));
    GradientRun fold = gradient;
    fold.out = mean.data();
    const bool finite = FoldGradient(fold);
    switch (step.rule) {
      case OptimizerKind::kSgd:
      case OptimizerKind::kMomentum:
      case OptimizerKind::kNesterov:
        UpdateSgd(step, mean, run);
        break;
      case OptimizerKind::kAdam:
      case OptimizerKind::kAdamW:
        UpdateAdam(step, mean, run);
        break;
      default:
        CpuBackend().Update(step, gradient, run);
    }
    return finite;
  }

  static void UpdateSgd(const RuleStep& step, const std::vector<float>& mean,
                        const UpdateRun& run) {
    const float scale = step.scalars[0], decay = step.scalars[1];
    const float rate = step.scalars[2], momentum = step.scalars[3];
    for (size_t i = 0; i < mean.size(); ++i) {
      const float w = run.weights_in[i];
      const float g = scale * mean[i] + decay * w;
      float change = g;
      if (step.rule != OptimizerKind::kSgd) {
        const float v = momentum * run.slots_in[0][i] + g;
        run.slots_out[0][i] = v;
        change = step.rule == OptimizerKind::kNesterov ? g + momentum * v : v;
      }
      run.weights_out[i] = w - rate * change;
    }
  }

  static void UpdateAdam(const RuleStep& step, const std::vector<float>& mean,
                         const UpdateRun& run) {
    const auto [scale, rate, weight_decay, keep, first_decay, first_gain,
                second_decay, second_gain, correction, epsilon, unused,
                unused2] = step.scalars;
    for (size_t i = 0; i < mean.size(); ++i) {
      const float w = run.weights_in[i];
      const float g = scale * mean[i] + weight_decay * w;
      const float m = first_decay * run.slots_in[0][i] + first_gain * g;
      const float v = second_decay * run.slots_in[1][i] + second_gain * (g * g);
      run.slots_out[0][i] = m;
      run.slots_out[1][i] = v;
      float square = v;
      if (run.slots_in[2] != nullptr) {
        square = std::max(run.slots_in[2][i], v);
        run.slots_out[2][i] = square;
      }
      const float root = std::sqrt(square) / correction + epsilon;
      run.weights_out[i] = keep * w - rate * (m / root);
    }
  }

  bool Compensate(const CompensationStep& step,
                  const CompensationRun& run) const override {
    bool finite = true;
    for (int64_t i = 0; i < run.count; ++i) {
      const float g = run.gradient[i];
      float lambda = step.lambda;
      if (run.square_in != nullptr) {
        const float s =
            step.square_decay * run.square_in[i] + step.square_gain * (g * g);
        run.square_out[i] = s;
        lambda = lambda / std::sqrt(s + step.epsilon);
      }
      const float moved = run.weights_now[i] - run.weights_read[i];
      run.gradient[i] = g + lambda * (g * g) * moved;
      finite = finite && std::isfinite(run.gradient[i]);
    }
    return finite;
  }

  void RoundChange(const ChangeRun& run) const override {
    for (int64_t i = 0; i < run.count; ++i) {
      const float w = run.weights_in[i];
      const float u = run.remainder_in[i] + (run.weights[i] - w);
      const uint16_t bits = BFloat16Bits(u);
      std::memcpy(run.change + i * sizeof(bits), &bits, sizeof(bits));
      const float next = w + BFloat16Value(bits);
      run.weights[i] = next;
      run.remainder_out[i] = u - (next - w);
    }
  }
};

}  // namespace

const Backend& ReferenceBackend() {
  static const PlainBackend& backend = *new PlainBackend;
  return backend;
}

}  // namespace cohort::kernels
