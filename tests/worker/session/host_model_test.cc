#include "worker/session/host_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace cohort {
namespace {

using ::testing::ElementsAre;

// Two parameters of two elements; each partition has one element of each.
class HostModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    model_.SetPartitions({{.slices = {{0, 0, 1}, {1, 0, 1}}, .elements = 2},
                          {.slices = {{0, 1, 1}, {1, 1, 1}}, .elements = 2}});
  }

  ModelMemory::Gradient Fetched(int32_t partition) {
    EXPECT_TRUE(model_.Fetch(partition).ok());
    return **model_.Take(/*wait=*/false);
  }

  static std::vector<float> FloatsOf(const ByteRope& bytes) {
    std::vector<float> floats(static_cast<size_t>(bytes.size_bytes() / 4));
    RopeReader(bytes).Read(floats.data(), bytes.size_bytes());
    return floats;
  }

  std::vector<float> first_ = {1, 2};
  std::vector<float> second_ = {3, 4};
  std::vector<HostModel::ParameterGradient> gradients_ = {{}, {}};
  HostModel model_{{absl::MakeSpan(first_), absl::MakeSpan(second_)},
                   [this](size_t i) { return gradients_[i]; }};
};

TEST_F(HostModelTest, APartitionHasItsSlicesAndMissingOnesAreZeros) {
  const std::vector<float> one = {10, 20};
  gradients_[0].data = one.data();
  const ModelMemory::Gradient gradient = Fetched(1);
  EXPECT_THAT(FloatsOf(gradient.bytes), ElementsAre(20, 0));
  EXPECT_THAT(gradient.absent_slices, ElementsAre(1));
}

TEST_F(HostModelTest, WithoutAnyGradientThereAreNoBytes) {
  const ModelMemory::Gradient gradient = Fetched(0);
  EXPECT_EQ(gradient.bytes.size_bytes(), 0);
  EXPECT_THAT(gradient.absent_slices, ElementsAre(0, 1));
}

TEST_F(HostModelTest, LoadWritesThePartitionsThatCame) {
  const ByteRope rope = ByteRope::CopyText("eight by");
  ASSERT_TRUE(model_.Load({ByteRope(), rope}).ok());
  EXPECT_EQ((std::vector<float>{first_[1], second_[1]}), FloatsOf(rope));
  EXPECT_EQ(first_[0], 1);
}

TEST_F(HostModelTest, LoadRefusesOtherLengths) {
  const ByteRope rope = ByteRope::CopyText("twelve bytes");
  EXPECT_TRUE(absl::IsInvalidArgument(model_.Load({ByteRope(), rope})));
  EXPECT_TRUE(absl::IsInvalidArgument(model_.Load({ByteRope()})));
}

}  // namespace
}  // namespace cohort
