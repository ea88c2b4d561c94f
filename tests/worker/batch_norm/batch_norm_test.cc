// The results of the layers: several workers, each a thread, compared with the
// stock operator in float64 on the joined batch.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "tests/kernels/reference/reference_backend.h"
#include "tests/worker/batch_norm/joined_batch.h"
#include "worker/batch_norm/binding.h"
#include "worker/batch_norm/scope.h"

namespace cohort {
namespace {

TEST(BatchNormTest, UnevenWorkersAndAnEmptyOneEqualTheJoinedBatch) {
  for (const std::vector<int64_t>& rest :
       {std::vector<int64_t>{}, {4}, {3, 4}, {2, 3, 2}}) {
    SCOPED_TRACE(rest.size());
    const Case values = RandomCase({5, 0, 17, 2}, 6, rest, at::kDouble);
    ExpectEqualsJoinedBatch({}, values, kernels::CpuBackend(), {});
    ExpectEqualsJoinedBatch({}, values, kernels::ReferenceBackend(), {});
  }
}

TEST(BatchNormTest, KeepsChannelsLastInAndOut) {
  Case flat = RandomCase({3, 4}, 6, {5, 4}, at::kDouble);
  Case deep = RandomCase({3, 4}, 6, {2, 5, 4}, at::kDouble);
  for (size_t k = 0; k < 2; ++k) {
    flat.x[k] = flat.x[k].contiguous(at::MemoryFormat::ChannelsLast);
    deep.x[k] = deep.x[k].contiguous(at::MemoryFormat::ChannelsLast3d);
  }
  ExpectEqualsJoinedBatch({}, flat, kernels::CpuBackend(), {});
  ExpectEqualsJoinedBatch({}, deep, kernels::CpuBackend(), {});
}

TEST(BatchNormTest, Float32FollowsTheJoinedBatchForAnyChannelCount) {
  // Rounding of float32 outputs is 6e-8 of values of order 10; the gradients
  // of scale and shift are float64 sums, rounded once a worker.
  constexpr Tolerance kFloat32{.tensors = 2e-6, .parameters = 2e-6};
  for (const int64_t channels : {1, 3, 64, 65, 100, 2049}) {
    SCOPED_TRACE(channels);
    Case values = RandomCase({3, 5}, channels, {3, 4}, at::kFloat);
    ExpectEqualsJoinedBatch({}, values, kernels::CpuBackend(), kFloat32);
    for (at::Tensor& x : values.x) {
      x = x.contiguous(at::MemoryFormat::ChannelsLast);
    }
    ExpectEqualsJoinedBatch({}, values, kernels::CpuBackend(), kFloat32);
  }
}

TEST(BatchNormTest, WorkersFarApartShareOneVariance) {
  // Each worker's own variance is 4; the cohort's is a million.
  Case values = RandomCase({6, 6}, 3, {4}, at::kDouble);
  values.x[0] += 1000;
  values.x[1] -= 1000;
  ExpectEqualsJoinedBatch({}, values, kernels::CpuBackend(), {});
}

TEST(BatchNormTest, ConstantChannelBecomesTheShift) {
  Case values = RandomCase({4, 3}, 3, {2}, at::kDouble);
  for (at::Tensor& x : values.x) x.select(1, 1).fill_(0.5);
  ExpectEqualsJoinedBatch({}, values, kernels::CpuBackend(), {});
  const std::vector<Outcome> parts =
      RunCohort({}, values, kernels::CpuBackend());
  EXPECT_TRUE(
      Close(parts[0].y.select(1, 1), values.beta[1].expand({4, 2}), 1e-15));
}

TEST(BatchNormTest, LargeMeanKeepsItsVarianceInFloat32) {
  torch::manual_seed(3);
  const at::Tensor x = at::randn({64, 2, 8, 8}) + 1e4;
  torch::nn::BatchNorm2d norm(2);
  const auto binding = BatchNormBinding::Make(*norm);
  StepContext step{.backend = &kernels::CpuBackend()};
  {
    const BatchNormScope scope(*binding, &step);
    norm->forward(x);
  }
  ASSERT_EQ(step.moments.size(), 1U);
  const Moments& moments = step.moments[0].moments;
  EXPECT_EQ(moments.count, 64 * 8 * 8);
  const at::Tensor wanted =
      x.to(at::kDouble).var(std::vector<int64_t>{0, 2, 3}, false);
  for (int64_t c = 0; c < 2; ++c) {
    const double variance =
        moments.second[static_cast<size_t>(c)] / (64.0 * 8 * 8);
    EXPECT_NEAR(variance, wanted[c].item<double>(), 1e-3);
  }
}

TEST(BatchNormTest, WorkerZerosInputMovesWorkerOnesLoss) {
  // Only worker 1 has a loss, sum(y * dy); it affects worker 0 through the
  // moments alone.
  Case values = RandomCase({3, 4}, 2, {}, at::kDouble);
  values.dy[0].zero_();
  auto loss_of_worker_one = [&values] {
    const std::vector<Outcome> parts =
        RunCohort({}, values, kernels::CpuBackend());
    return (parts[1].y * values.dy[1]).sum().item<double>();
  };
  const at::Tensor dx = RunCohort({}, values, kernels::CpuBackend())[0].dx;
  const double h = 1e-5;
  for (int64_t row = 0; row < 3; ++row) {
    for (int64_t c = 0; c < 2; ++c) {
      const double x = values.x[0][row][c].item<double>();
      values.x[0][row][c] = x + h;
      const double above = loss_of_worker_one();
      values.x[0][row][c] = x - h;
      const double below = loss_of_worker_one();
      values.x[0][row][c] = x;
      EXPECT_NEAR(dx[row][c].item<double>(), (above - below) / (2 * h), 1e-6);
    }
  }
  EXPECT_GT(dx.abs().max().item<double>(), 1e-3) << "the test is vacuous";
}

TEST(BatchNormTest, NobodyHasSamples) {
  const Case values = RandomCase({0, 0}, 3, {2, 2}, at::kFloat);
  for (const Outcome& part : RunCohort({}, values, kernels::CpuBackend())) {
    EXPECT_EQ(part.y.sizes(), (std::vector<int64_t>{0, 3, 2, 2}));
    EXPECT_EQ(part.dx.sizes(), (std::vector<int64_t>{0, 3, 2, 2}));
    EXPECT_TRUE(Close(part.dgamma, at::zeros({3}), 0));
    EXPECT_TRUE(Close(part.dbeta, at::zeros({3}), 0));
  }
}

TEST(BatchNormTest, EqualInputsGiveEqualBits) {
  const Case values = RandomCase({3, 5}, 65, {3, 4}, at::kFloat);
  const std::vector<Outcome> a = RunCohort({}, values, kernels::CpuBackend());
  const std::vector<Outcome> b = RunCohort({}, values, kernels::CpuBackend());
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(at::equal(a[rank].y, b[rank].y));
    EXPECT_TRUE(at::equal(a[rank].dx, b[rank].dx));
    EXPECT_TRUE(at::equal(a[rank].dgamma, b[rank].dgamma));
  }
}

}  // namespace
}  // namespace cohort
