#include "server/run/model_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

BatchNormSpec Layer(const std::string& name, int64_t channels) {
  return {.name = name, .channels = channels};
}

ModelLayout Model(std::vector<BatchNormSpec> layers) {
  return {.parameters = {{.name = "w", .shape = {1 << 20}}},
          .batch_norms = std::move(layers)};
}

TEST(ModelLimitsTest, EveryNumberOfALayoutIsBounded) {
  ModelLayout many = Model({});
  for (int i = 0; i < 17; ++i) {
    many.batch_norms.push_back(Layer(absl::StrCat("bn", i), 1 << 20));
  }
  ModelLayout deep = Model({});
  deep.parameters[0].shape = std::vector<int64_t>(17, 1);
  ModelLayout named = Model({});
  named.parameters[0].name = std::string(1025, 'n');
  ModelLayout vast = Model({});
  vast.parameters[0].shape = {int64_t{1} << 33};
  for (const ModelLayout& layout :
       {Model({Layer("bn", (1 << 20) + 1)}),
        Model({Layer("bn", int64_t{1} << 62)}), many, deep, named, vast}) {
    EXPECT_TRUE(absl::IsInvalidArgument(CheckModelLimits(layout, {})));
  }
  EXPECT_TRUE(CheckModelLimits(Model({Layer("bn", 2048)}), {}).ok());
}

TEST(ModelLimitsTest, LimitOnWeightsIsAFlag) {
  constexpr int64_t kMib = 1 << 20;
  ModelLayout layout = Model({});
  EXPECT_TRUE(CheckModelLimits(layout, {.weight_bytes_max = 4 * kMib}).ok());
  layout.parameters.push_back({.name = "bias", .shape = {1}});
  const absl::Status status =
      CheckModelLimits(layout, {.weight_bytes_max = 4 * kMib});
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("with bias"), HasSubstr("larger --model_mib")));
  // More than the default.
  layout.parameters[0].shape = {int64_t{1} << 33};
  ExpectOk(CheckModelLimits(layout, {.weight_bytes_max = 40'000 * kMib}));
}

// 4 MiB of weights and twice as much of slots, in two versions: 24 MiB.
TEST(ModelLimitsTest, ModelMustFitIntoMemoryWithItsSlots) {
  constexpr int64_t kMib = 1 << 20;
  const ModelLayout layout = Model({});
  ExpectOk(CheckModelLimits(layout, {.slots = 2, .memory_bytes = 24 * kMib}));
  EXPECT_THAT(
      CheckModelLimits(layout, {.slots = 2, .memory_bytes = 24 * kMib - 1}),
      IsError(kInvalidArgument, "24 MiB"));
}

}  // namespace
}  // namespace cohort
