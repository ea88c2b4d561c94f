#include <torch/torch.h>

#include <tuple>
#include <vector>

#include "common/host_memory.h"
#include "kernels/backend.h"
#include "tests/bench/kernel_bench.h"
#include "tests/bench/tcp_baseline.h"
#include "worker/batch_norm/host_batch_norm.h"

namespace cohort::bench {
namespace {

constexpr double kEpsilon = 1e-5;

// One layer in training, including its statistics between the two passes.
struct Layer {
  at::Tensor x;
  at::Tensor dy;
  at::Tensor gamma;
  at::Tensor beta;
  at::Tensor moving_mean;
  at::Tensor moving_variance;
};

Layer MakeLayer(const BatchNormSetup& setup) {
  torch::manual_seed(1);
  const auto format = setup.channels_last ? at::MemoryFormat::ChannelsLast
                                          : at::MemoryFormat::Contiguous;
  const at::Tensor like = torch::empty(
      {setup.images, setup.channels, setup.side, setup.side}, format);
  return {.x = torch::randn_like(like),
          .dy = torch::randn_like(like),
          .gamma = torch::rand({setup.channels}) + 0.5,
          .beta = torch::randn({setup.channels}),
          .moving_mean = torch::zeros({setup.channels}),
          .moving_variance = torch::ones({setup.channels})};
}

class CohortLayer {
 public:
  CohortLayer(const Layer& layer, const BatchNormSetup& setup) : layer_(layer) {
    const int64_t area = setup.side * setup.side;
    shape_ = {.outer = setup.images, .channels = setup.channels, .inner = area};
    if (setup.channels_last) {
      shape_.outer *= area;
      shape_.inner = 1;
    }
  }

  at::Tensor Forward() {
    by_ = StatisticsOf(
        LocalMoments(backend_, {.shape = shape_, .x = layer_.x.data_ptr()}),
        kEpsilon);
    at::Tensor y = at::empty_like(layer_.x);
    backend_.Normalize({.shape = shape_,
                        .x = layer_.x.data_ptr(),
                        .mean = by_.mean.data(),
                        .invstd = by_.invstd.data(),
                        .gamma = layer_.gamma.data_ptr(),
                        .beta = layer_.beta.data_ptr(),
                        .y = y.data_ptr()});
    return y;
  }

  at::Tensor Backward() {
    const Moments sums = BackwardSums(backend_, {.shape = shape_,
                                                 .x = layer_.x.data_ptr(),
                                                 .dy = layer_.dy.data_ptr(),
                                                 .mean = by_.mean.data()});
    at::Tensor dx = at::empty_like(layer_.x);
    backend_.BackwardElementwise({.shape = shape_,
                                  .x = layer_.x.data_ptr(),
                                  .dy = layer_.dy.data_ptr(),
                                  .mean = by_.mean.data(),
                                  .invstd = by_.invstd.data(),
                                  .gamma = layer_.gamma.data_ptr(),
                                  .sum_dy = sums.first.data(),
                                  .sum_dy_xmu = sums.second.data(),
                                  .total_count = shape_.count(),
                                  .dx = dx.data_ptr()});
    return dx;
  }

 private:
  const kernels::Backend& backend_ = kernels::CpuBackend();
  const Layer& layer_;
  kernels::BatchShape shape_;
  BatchStatistics by_;
};

class TorchLayer {
 public:
  explicit TorchLayer(const Layer& layer) : layer_(layer) {}

  at::Tensor Forward() {
    at::Tensor y;
    std::tie(y, mean_, invstd_) = at::native_batch_norm(
        layer_.x, layer_.gamma, layer_.beta, layer_.moving_mean,
        layer_.moving_variance, /*training=*/true, /*momentum=*/0.1, kEpsilon);
    return y;
  }

  at::Tensor Backward() {
    return std::get<0>(at::native_batch_norm_backward(
        layer_.dy, layer_.x, layer_.gamma, layer_.moving_mean,
        layer_.moving_variance, mean_, invstd_, /*train=*/true, kEpsilon,
        {true, true, true}));
  }

 private:
  const Layer& layer_;
  at::Tensor mean_;
  at::Tensor invstd_;
};

struct PassSeconds {
  std::vector<double> forward;
  std::vector<double> backward;
  std::vector<double> both;
};

template <typename Contender>
void TimeOnce(Contender& contender, PassSeconds& seconds) {
  const double start = ThreadSeconds();
  // Kept until the clock has stopped: freeing it is not part of the layer.
  const at::Tensor y = contender.Forward();
  const double middle = ThreadSeconds();
  const at::Tensor dx = contender.Backward();
  const double end = ThreadSeconds();
  seconds.forward.push_back(middle - start);
  seconds.backward.push_back(end - middle);
  seconds.both.push_back(end - start);
}

}  // namespace

BatchNormDuel TimeBatchNorm(const BatchNormSetup& setup, int32_t rounds) {
  // Otherwise the first touch of fresh pages takes longer than the kernels, and
  // only the first contender pays for it.
  KeepFreedMemory();
  const at::NoGradGuard no_gradients;
  const Layer layer = MakeLayer(setup);
  CohortLayer cohort(layer, setup);
  TorchLayer other(layer);
  PassSeconds cohort_seconds;
  PassSeconds other_seconds;
  for (int32_t round = 0; round < rounds + 1; ++round) {
    if (round == 1) {
      // The first round found memory and caches cold.
      cohort_seconds = {};
      other_seconds = {};
    }
    TimeOnce(cohort, cohort_seconds);
    TimeOnce(other, other_seconds);
  }
  const auto duel = [](const std::vector<double>& a,
                       const std::vector<double>& b) {
    return Duel{.cohort = Quantile(a, 0.5), .other = Quantile(b, 0.5)};
  };
  return {.forward = duel(cohort_seconds.forward, other_seconds.forward),
          .backward = duel(cohort_seconds.backward, other_seconds.backward),
          .both = duel(cohort_seconds.both, other_seconds.both)};
}

}  // namespace cohort::bench
