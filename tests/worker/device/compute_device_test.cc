#include "worker/device/compute_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <exception>
#include <new>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/fakes/fake_accelerator.h"
#include "tests/fakes/statuses.h"
#include "worker/device/out_of_memory.h"
#include "worker/device/precision.h"

namespace cohort {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ComputeDeviceTest, NamesAreRead) {
  EXPECT_EQ(*ParseDevice("cpu"), std::nullopt);
  EXPECT_EQ(*ParseDevice("cuda"), 0);
  EXPECT_EQ(*ParseDevice("cuda:0"), 0);
  EXPECT_EQ(*ParseDevice("cuda:12"), 12);
}

TEST(ComputeDeviceTest, OtherNamesAreRefused) {
  for (const char* text :
       {"", "gpu", "cuda:", "cuda:-1", "cuda:+1", "cuda: 1", "cuda:01",
        "cuda:1x", "CUDA:0", "cuda:99999999999"}) {
    EXPECT_THAT(
        ParseDevice(text),
        IsError(kInvalidArgument, absl::StrCat("--device: got ", text)));
  }
}

TEST(ComputeDeviceTest, CpuNeedsNoAccelerator) {
  const ComputeDevice device = OkValue(OpenComputeDevice("cpu"));
  EXPECT_EQ(device.accelerator, nullptr);
  EXPECT_EQ(device.name(), "cpu");
}

// One of these is missing here: CUDA in this build, the driver, or the GPUs.
TEST(ComputeDeviceTest, GpuThatIsNotThereIsRefusedWithWhatToDo) {
  const absl::Status status = OpenComputeDevice("cuda:99").status();
  EXPECT_THAT(status.code(), AnyOf(kFailedPrecondition, kInvalidArgument));
  const std::string text(status.message());
  EXPECT_THAT(text, StartsWith("--device: got cuda:99: "));
  EXPECT_THAT(text, AnyOf(HasSubstr("use --device=cpu, or build it with"),
                          HasSubstr("want an NVIDIA driver"),
                          HasSubstr("want cuda:0")));
}

TEST(ComputeDeviceTest, ModelStaysTheTensorsThatItIs) {
  torch::nn::Linear layer(2, 3);
  const at::Tensor weight = layer->weight;
  FakeAccelerator accelerator;
  ASSERT_TRUE(MoveTo({.accelerator = &accelerator}, *layer).ok());
  EXPECT_TRUE(layer->weight.is_same(weight));
}

TEST(OutOfMemoryTest, IsKnownByTypeAndByText) {
  const auto thrown = [](const auto& raise) {
    try {
      raise();
    } catch (const std::exception& e) {
      return IsOutOfMemory(e);
    }
    return false;
  };
  EXPECT_TRUE(thrown([] {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "Tried to allocate 2.00 GiB");
  }));
  EXPECT_TRUE(thrown([] { throw std::bad_alloc(); }));
  EXPECT_TRUE(thrown([] { TORCH_CHECK(false, "CUDA error: out of memory"); }));
  EXPECT_FALSE(thrown([] { TORCH_CHECK(false, "sizes do not match"); }));
}

TEST(OutOfMemoryTest, TextNamesTensorDeviceAndWayOut) {
  FakeAccelerator accelerator;
  accelerator.free_bytes = 1000;
  EXPECT_EQ(TensorText("conv1.weight", torch::empty({64, 3, 7, 7})),
            "conv1.weight, Float [64,3,7,7], 37632 bytes");
  const absl::Status status =
      OutOfMemory({.accelerator = &accelerator},
                  TensorText("conv1.weight", torch::empty({2, 3})), "no room");
  EXPECT_EQ(status.code(), kResourceExhausted);
  const std::string text(status.message());
  EXPECT_THAT(text, HasSubstr("conv1.weight, Float [2,3], 24 bytes"));
}

TEST(PrecisionTest, NamesAreRead) {
  EXPECT_EQ(PrecisionNamed("float32"), Precision::kFloat32);
  EXPECT_EQ(PrecisionNamed("bfloat16"), Precision::kBFloat16);
}

TEST(PrecisionTest, LayersComputeInItAndGradientsStayFloat32) {
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(2, 3, 3));
  const at::Tensor x = torch::randn({2, 2, 8, 8});
  {
    const PrecisionScope scope(at::kCPU, Precision::kFloat32);
    EXPECT_EQ(conv(x).scalar_type(), at::kFloat);
  }
  at::Tensor y;
  {
    const PrecisionScope scope(at::kCPU, Precision::kBFloat16);
    y = conv(x);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  }
  y.to(at::kFloat).sum().backward();
  EXPECT_EQ(conv->weight.grad().scalar_type(), at::kFloat);
  EXPECT_EQ(conv(x).scalar_type(), at::kFloat);
}

// LibTorch keeps a bfloat16 copy of each weight within a scope.
TEST(PrecisionTest, NewWeightsAreSeenByTheNextScope) {
  torch::nn::Linear layer(1, 1);
  const at::Tensor x = torch::ones({1, 1});
  const auto output = [&] {
    const PrecisionScope scope(at::kCPU, Precision::kBFloat16);
    return layer(x).item<float>();
  };
  torch::NoGradGuard no_grad;
  layer->bias.zero_();
  for (const float weight : {1.0F, 2.0F}) {
    // Weights are loaded without LibTorch's knowledge.
    *layer->weight.data_ptr<float>() = weight;
    const torch::AutoGradMode on(true);
    EXPECT_EQ(output(), weight);
  }
}

}  // namespace
}  // namespace cohort
