#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <vector>

#include "absl/types/span.h"
#include "kernels/backend.h"
#include "tests/bench/kernel_bench.h"
#include "tests/bench/tcp_baseline.h"

namespace cohort::bench {
namespace {

// Elements of a partition, and of the blocks that the server folds for Adam.
constexpr int64_t kPartition = 1 << 18;
constexpr int64_t kBlock = 1 << 12;

using Floats = std::vector<float>;

// Weights and two slots, before and after.
struct State {
  explicit State(size_t elements)
      : weights(elements, 1), first(elements, 0.1F), second(elements, 0.1F) {}

  Floats weights;
  Floats first;
  Floats second;
};

class FoldedArrays {
 public:
  FoldedArrays(FoldRule rule, int32_t contributors, int64_t elements)
      : rule_(rule),
        elements_(elements),
        gradients_(static_cast<size_t>(contributors),
                   Floats(static_cast<size_t>(elements), 0.01F)),
        before_(static_cast<size_t>(elements)),
        after_(static_cast<size_t>(elements)) {}

  void Fold() {
    for (int64_t begin = 0; begin < elements_; begin += kPartition) {
      const int64_t end = std::min(begin + kPartition, elements_);
      if (rule_ != FoldRule::kAdam) {
        FoldSgd(begin, end - begin);
        continue;
      }
      for (int64_t at = begin; at < end; at += kBlock) {
        FoldAdam(at, std::min(kBlock, end - at));
      }
    }
  }

  void Sweep() {
    for (int64_t begin = 0; begin < elements_; begin += kPartition) {
      SweepBlock(begin, std::min(kPartition, elements_ - begin));
    }
  }

 private:
  std::vector<const std::byte*> GradientsAt(int64_t begin) const {
    std::vector<const std::byte*> at;
    for (const Floats& gradient : gradients_) {
      at.push_back(reinterpret_cast<const std::byte*>(gradient.data() + begin));
    }
    return at;
  }

  void FoldSgd(int64_t begin, int64_t count) {
    const std::vector<const std::byte*> gradients = GradientsAt(begin);
    const bool moves = rule_ == FoldRule::kMomentum;
    backend_.FoldSgd({.gradient_scale = 0.5F,
                      .learning_rate = 1e-3F,
                      .weight_decay = 1e-4F,
                      .momentum = moves ? 0.9F : 0},
                     {.gradients = gradients,
                      .count = count,
                      .weights_in = before_.weights.data() + begin,
                      .weights_out = after_.weights.data() + begin,
                      .velocity_in = before_.first.data() + begin,
                      .velocity_out = after_.first.data() + begin});
  }

  void FoldAdam(int64_t begin, int64_t count) {
    const std::vector<const std::byte*> gradients = GradientsAt(begin);
    backend_.FoldGradient({.gradients = gradients,
                           .scale = 0.5F,
                           .count = count,
                           .out = block_.data()});
    backend_.UpdateAdam({.rate = 1e-3F,
                         .first_decay = 0.9F,
                         .first_gain = 0.1F,
                         .second_decay = 0.999F,
                         .second_gain = 0.001F},
                        {.gradient = block_.data(),
                         .count = count,
                         .weights_in = before_.weights.data() + begin,
                         .weights_out = after_.weights.data() + begin,
                         .first_in = before_.first.data() + begin,
                         .first_out = after_.first.data() + begin,
                         .second_in = before_.second.data() + begin,
                         .second_out = after_.second.data() + begin});
  }

  // Weights and slots that the rule reads, and as many that it writes.
  int StateArrays() const {
    if (rule_ == FoldRule::kAdam) return 3;
    return rule_ == FoldRule::kMomentum ? 2 : 1;
  }

  void SweepBlock(int64_t begin, int64_t count) {
    for (const Floats& gradient : gradients_) Read(gradient, begin, count);
    for (int k = 0; k < StateArrays(); ++k) {
      Read(before_.*kState[k], begin, count);
      std::fill_n((after_.*kState[k]).data() + begin, count, 0.5F);
    }
  }

  // Their bits as integers: the compiler may add those in any order.
  void Read(const Floats& from, int64_t begin, int64_t count) {
    uint32_t sum = 0;
    for (int64_t i = begin; i < begin + count; ++i) {
      sum += std::bit_cast<uint32_t>(from[static_cast<size_t>(i)]);
    }
    bits_ += sum;
  }

  static constexpr Floats State::*kState[] = {&State::weights, &State::first,
                                              &State::second};

  const kernels::Backend& backend_ = kernels::CpuBackend();
  const FoldRule rule_;
  const int64_t elements_;
  const std::vector<Floats> gradients_;
  const State before_;
  State after_;
  Floats block_ = Floats(kBlock);
  // Of all that the sweep has read.
  uint32_t bits_ = 0;
};

}  // namespace

double ThreadSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) +
         static_cast<double>(now.tv_nsec) / 1e9;
}

Duel TimeFold(FoldRule rule, int32_t contributors, int64_t elements,
              int32_t rounds) {
  FoldedArrays arrays(rule, contributors, elements);
  arrays.Fold();
  arrays.Sweep();
  std::vector<double> folds;
  std::vector<double> sweeps;
  for (int32_t round = 0; round < rounds; ++round) {
    const double start = ThreadSeconds();
    arrays.Fold();
    const double middle = ThreadSeconds();
    arrays.Sweep();
    folds.push_back(middle - start);
    sweeps.push_back(ThreadSeconds() - middle);
  }
  return {.cohort = Quantile(folds, 0.5), .other = Quantile(sweeps, 0.5)};
}

}  // namespace cohort::bench
