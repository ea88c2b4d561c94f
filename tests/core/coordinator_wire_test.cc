// Gradients in bfloat16: which workers send them, and what becomes of them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "server/core/coordinator.h"
#include "tests/core/fake_cohort.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using testing::ElementsAre;

using testing::IsEmpty;
using testing::UnorderedElementsAre;

const SettingValues kToBFloat16 = {{"wire", "bf16"}};
const SettingValues kToFloat32 = {{"wire", "float32"}};

FakeSetup InBFloat16(FakeSetup setup) {
  setup.options.policy.wire = ElementType::kBFloat16;
  return setup;
}

// 1 + 2^-8 is a tie between 1 and 1 + 2^-7, and becomes 1.
constexpr float kTie = 1 + 0x1p-8F;

FakePush TiePush() {
  FakePush push;
  push.w = {kTie, 2};
  push.b = {kTie};
  return push;
}

TEST(CoordinatorWireTest, EveryAssignmentSaysHowToSend) {
  StartedCohort floats(SmallSetup());
  EXPECT_EQ(floats.told(kRank0).gradients, ElementType::kFloat32);
  for (const FakeSetup& setup : {SmallSetup(), AsyncSetup()}) {
    StartedCohort cohort(InBFloat16(setup));
    EXPECT_EQ(cohort.told(kRank0).gradients, ElementType::kBFloat16);
    cohort.PushBoth({});
    EXPECT_EQ(cohort.told(kRank1).gradients, ElementType::kBFloat16);
  }
}

// Rate 0.5, loss reference 4, and 2 labels in all: w - 0.5 * 2 * (sum).
TEST(CoordinatorWireTest, TheStepIsThatOfTheRoundedGradients) {
  FakeCohort rounded(InBFloat16(SmallSetup()));
  FakeCohort exact(SmallSetup());
  for (FakeCohort* cohort : {&rounded, &exact}) {
    cohort->Start();
    cohort->PushBoth(TiePush(), {});
  }
  EXPECT_THAT(rounded.weights(0), ElementsAre(0, 0));
  EXPECT_THAT(rounded.weights(1), ElementsAre(2));
  EXPECT_THAT(exact.weights(0), ElementsAre(1 - kTie, 0));
  EXPECT_THAT(exact.weights(1), ElementsAre(3 - kTie));
}

// A client may send float32 whatever it was assigned.
TEST(CoordinatorWireTest, TypesMayBeMixedInAStep) {
  StartedCohort cohort(InBFloat16(SmallSetup()));
  for (const Rank rank : {kRank1, kRank0}) {
    const ElementType type =
        rank == kRank0 ? ElementType::kFloat32 : ElementType::kBFloat16;
    ASSERT_TRUE(cohort.Open(rank, TiePush()).ok());
    ASSERT_TRUE(cohort.Gradient(rank, 0, {kTie, 2}, {}, type).ok());
    ASSERT_TRUE(cohort.Gradient(rank, 1, {kTie}, {}, type).ok());
    ASSERT_TRUE(cohort.Close(rank, TiePush()).ok());
  }
  // The gradient is kTie + 1, and the change of the weight -2 with a remainder;
  // 2 - 0.5 * 2 * (2 + 2).
  EXPECT_THAT(cohort.weights(0), ElementsAre(-1, -2));
  EXPECT_THAT(cohort.snapshot()->slots[0].remainder->span(),
              ElementsAre(1 - kTie, 0));
}

TEST(CoordinatorWireTest, ALiveChangeIsToldWithTheNextAssignment) {
  StartedCohort cohort(SmallSetup());
  const auto answer = OkValue(cohort.Change(kToBFloat16));
  EXPECT_TRUE(answer.pending);

  cohort.PushBoth(TiePush(), {});
  // The step in progress was one of float32.
  EXPECT_THAT(cohort.weights(1), ElementsAre(3 - kTie));
  EXPECT_EQ(cohort.Only<effect::PolicyChanged>().record.changed, kToBFloat16);
  EXPECT_EQ(cohort.told(kRank0).gradients, ElementType::kBFloat16);
}

TEST(CoordinatorWireTest, ARunGoesBackToFloat32) {
  StartedCohort cohort(Long(InBFloat16(AsyncSetup())));
  ASSERT_TRUE(cohort.Change(kToFloat32).ok());
  // What is in flight was begun under the old setting.
  cohort.PushBoth(TiePush());
  EXPECT_EQ(cohort.told(kRank0).gradients, ElementType::kFloat32);
  EXPECT_EQ(cohort.told(kRank1).gradients, ElementType::kFloat32);
}

TEST(CoordinatorWireTest, TheLengthIsThatOfTheType) {
  StartedCohort cohort(InBFloat16(SmallSetup()));
  ASSERT_TRUE(cohort.Open(kRank0, {}).ok());
  for (const ElementType type :
       {ElementType::kBFloat16, ElementType::kFloat32}) {
    EXPECT_TRUE(
        absl::IsInvalidArgument(cohort.Gradient(kRank0, 0, {1}, {}, type)));
  }
}

// Partition 0 has two elements and partition 1 one.
TEST(CoordinatorWireTest, RoomIsForTheBytesThatCame) {
  StartedCohort cohort(InBFloat16(SmallSetup()));
  ASSERT_TRUE(cohort.Open(kRank0, {}).ok());
  ASSERT_TRUE(cohort.Gradient(kRank0, 0, {1, 2}).ok());
  EXPECT_EQ(cohort.core().inflight_bytes(), 4);
  ASSERT_TRUE(cohort.Gradient(kRank0, 1, {1}, {}, ElementType::kFloat32).ok());
  EXPECT_EQ(cohort.core().inflight_bytes(), 8);
  ASSERT_TRUE(cohort.Close(kRank0, FakePush{}).ok());
  cohort.Push(kRank1, {});
  EXPECT_EQ(cohort.core().inflight_bytes(), 0);
}

// Partitions whose weights went to `rank` as a change.
std::vector<int32_t> ChangesTo(const FakeCohort& cohort, Rank rank) {
  std::vector<int32_t> partitions;
  const auto commands = cohort.All<command::SendWeights>();
  for (size_t i = 0; i < commands.size(); ++i) {
    if (commands[i].rank == rank && cohort.sent()[i].change.size_bytes() > 0) {
      partitions.push_back(commands[i].partition);
    }
  }
  return partitions;
}

FakePush TakesChanges() {
  FakePush push = TiePush();
  push.takes_changes = true;
  return push;
}

TEST(CoordinatorWireTest, ChangesGoToThoseThatHoldTheVersionBefore) {
  StartedCohort cohort(InBFloat16(SmallSetup()));
  cohort.PushBoth(TakesChanges(), TiePush());
  EXPECT_THAT(ChangesTo(cohort, kRank0), UnorderedElementsAre(0, 1));
  EXPECT_THAT(ChangesTo(cohort, kRank1), IsEmpty());
}

TEST(CoordinatorWireTest, ChangesAreOfStepsInBFloat16Only) {
  FakeCohort floats(SmallSetup());
  FakeCohort async(InBFloat16(AsyncSetup()));
  for (FakeCohort* cohort : {&floats, &async}) {
    cohort->Start();
    cohort->PushBoth(TakesChanges());
    EXPECT_EQ(cohort->All<command::SendWeights>().size(), 4);
    EXPECT_THAT(ChangesTo(*cohort, kRank0), IsEmpty());
    EXPECT_EQ(cohort->snapshot()->slots[0].remainder, nullptr);
  }
}

// Its push counts, but the process that sent it held the weights.
TEST(CoordinatorWireTest, AReplacementGetsWholeWeights) {
  StartedCohort cohort(InBFloat16(SmallSetup()));
  cohort.Push(kRank0, TakesChanges());
  cohort.Leave(kRank0);
  cohort.StartOne(kRank0);
  cohort.Push(kRank1, TakesChanges());
  EXPECT_THAT(ChangesTo(cohort, kRank0), IsEmpty());
  EXPECT_THAT(ChangesTo(cohort, kRank1), UnorderedElementsAre(0, 1));
}

// Nothing jumps: a change leaves the weights, and the remainder begins with
// zeros and ends.
TEST(CoordinatorWireTest, TheRemainderComesAndGoesWithTheSetting) {
  StartedCohort cohort(Long(SmallSetup()));
  ASSERT_TRUE(cohort.Change(kToBFloat16).ok());
  cohort.PushBoth(TiePush());
  ASSERT_NE(cohort.snapshot()->slots[0].remainder, nullptr);
  EXPECT_THAT(cohort.snapshot()->slots[0].remainder->span(), ElementsAre(0, 0));
  for (Rank rank : {kRank0, kRank1}) {
    ASSERT_TRUE(cohort.Open(rank, {}).ok());
    ExpectOk(cohort.Gradient(rank, 0, {kTie, 0}, {}, ElementType::kFloat32));
    ASSERT_TRUE(cohort.Gradient(rank, 1, {0}).ok());
    if (rank == kRank1) {
      ASSERT_TRUE(cohort.Change(kToFloat32).ok());
    }
    ASSERT_TRUE(cohort.Close(rank, FakePush{}).ok());
  }
  // 2 + 2^-7 is 2 in bfloat16. The change to float32 has dropped the rest.
  EXPECT_EQ(cohort.weights(0)[0], 1 - 2 * kTie - 2);
  EXPECT_EQ(cohort.snapshot()->slots[0].remainder, nullptr);
}

TEST(CoordinatorWireTest, ARestoredRunHasItsRemainder) {
  FakeSetup setup = Checkpointing(Long(InBFloat16(SmallSetup())));
  StartedCohort cohort(setup);
  const auto step = [](FakeCohort& run) {
    for (Rank rank : {kRank0, kRank1}) {
      ASSERT_TRUE(run.Open(rank, {}).ok());
      ExpectOk(run.Gradient(rank, 0, {kTie, 0.3f}, {}, ElementType::kFloat32));
      ASSERT_TRUE(run.Gradient(rank, 1, {0.7f}).ok());
      ASSERT_TRUE(run.Close(rank, FakePush{}).ok());
    }
  };
  step(cohort);
  const RunState state = cohort.All<effect::WriteCheckpoint>().back().state;
  step(cohort);
  StartedCohort restored(setup, &state);
  step(restored);
  EXPECT_EQ(restored.snapshot()->version, Version(2));
  EXPECT_EQ(WeightChecksums(*restored.snapshot()),
            WeightChecksums(*cohort.snapshot()));
  EXPECT_EQ(restored.snapshot()->slots[0].remainder->span(),
            cohort.snapshot()->slots[0].remainder->span());
}

}  // namespace
}  // namespace cohort
