#include "server/partitions/partitions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/float_buffer.h"
#include "common/status_macros.h"
#include "kernels/backend.h"
#include "tests/core/float_values.h"
#include "tests/fakes/statuses.h"
#include "tests/kernels/reference/reference_backend.h"

namespace cohort {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

PushId OfRank(int32_t rank) {
  return {.rank = Rank(rank), .key = {.sequence = Sequence(3)}};
}

CoordinatorOptions SgdSettings() {
  CoordinatorOptions options;
  options.optimizer = {.kind = OptimizerKind::kSgd,
                       .weight_decay = 0,
                       .schedule = ScheduleKind::kConstant};
  return options;
}

// Shard 1 of 2 of a model of three partitions with one element each: it owns
// only the second, whose weight is 20 at version 7.
class PartitionsTest : public ::testing::Test {
 protected:
  PartitionsTest() {
    install_ = {.place = {.index = 1, .count = 2},
                .model = ModelOfOnes(3),
                .snapshot = SnapshotWith({nullptr, BufferOf({20}), nullptr}),
                .settings = SgdSettings()};
  }

  static CommitPlan PlanOf(int64_t transaction, int64_t base,
                           std::vector<int32_t> ranks) {
    CommitPlan plan{.transaction = transaction,
                    .base = Version(base),
                    .learning_rate = 1,
                    .loss_weight = 1};
    for (int32_t rank : ranks) plan.contributors.push_back(OfRank(rank));
    return plan;
  }

  static absl::StatusOr<std::vector<FoldJob>> Hold(Partitions& node,
                                                   int32_t rank,
                                                   int32_t partition,
                                                   float gradient) {
    return node.Hold({.push = OfRank(rank),
                      .partition = partition,
                      .gradient = RopeOf(BufferOf({gradient}))});
  }

  FoldReport Run(Partitions& node, const FoldJob& job) {
    return node.FoldDone(RunFold(job, kernels::ReferenceBackend(), pool_));
  }

  static absl::StatusOr<std::vector<FoldJob>> Prepare(Partitions& node,
                                                      const CommitPlan& plan) {
    COHORT_ASSIGN_OR_RETURN(Partitions::Consequences led_to,
                            node.Carry(command::Prepare{plan}));
    return std::move(led_to.folds);
  }

  static absl::StatusOr<Partitions::Consequences> Commit(Partitions& node,
                                                         int64_t transaction,
                                                         int64_t version) {
    return node.Carry(command::Commit{.transaction = transaction,
                                      .version = Version(version)});
  }

  static absl::StatusOr<Partitions::Consequences> Adopt(
      Partitions& node, const std::string& setting, const std::string& value) {
    return node.Carry(command::Adopt{.changed = {{setting, value}}});
  }

  // Holds the gradient of rank 0 and prepares it.
  void PrepareOne(Partitions& node, int64_t transaction, int64_t base) {
    ASSERT_TRUE(Hold(node, 0, 1, 4).ok());
    const auto folds = OkValue(Prepare(node, PlanOf(transaction, base, {0})));
    ASSERT_THAT(folds, SizeIs(1));
    EXPECT_TRUE(Run(node, folds.front()).prepared);
  }

  static float WeightAt(const Partitions& node, int64_t version) {
    const SharedSnapshot snapshot = node.Read(Version(version));
    return snapshot == nullptr ? -1 : *snapshot->weights[1]->data();
  }

  Installation install_;
  FloatBufferPool pool_;
};

TEST_F(PartitionsTest, OnlyTheNextVersionMayComeIfItTakesPartInCommits) {
  const Partitions node = *Partitions::Install(install_);
  EXPECT_FALSE(node.MayCome(Version(6)));
  EXPECT_FALSE(node.MayCome(Version(7)));
  EXPECT_TRUE(node.MayCome(Version(8)));
  EXPECT_FALSE(node.MayCome(Version(9)));
  auto frozen = std::make_shared<RegisteredModel>(*install_.model);
  frozen->partitions[1].trainable = false;
  install_.model = std::move(frozen);
  EXPECT_TRUE(Partitions::Install(install_)->MayCome(Version(9)));
}

TEST_F(PartitionsTest, FoldsAndCommitsOnlyItsOwnPartitions) {
  Partitions node = *Partitions::Install(install_);
  PrepareOne(node, 1, 7);
  EXPECT_EQ(node.newest(), Version(7));
  ASSERT_TRUE(Commit(node, 1, 8).ok());
  EXPECT_EQ(node.newest(), Version(8));
  EXPECT_EQ(WeightAt(node, 8), 16);
}

TEST_F(PartitionsTest, RefusesAGradientOfAnotherShardAndASecondOfTheSame) {
  Partitions node = *Partitions::Install(install_);
  EXPECT_TRUE(absl::IsFailedPrecondition(Hold(node, 0, 0, 1).status()));
  EXPECT_TRUE(Hold(node, 0, 1, 1).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(Hold(node, 0, 1, 1).status()));
}

TEST_F(PartitionsTest, RefusesToCommitWhatIsNotPrepared) {
  Partitions node = *Partitions::Install(install_);
  ASSERT_TRUE(Prepare(node, PlanOf(1, 7, {0})).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(Commit(node, 1, 8).status()));
  EXPECT_EQ(node.newest(), Version(7));
}

TEST_F(PartitionsTest, RefusesAPlanForAnotherVersion) {
  Partitions node = *Partitions::Install(install_);
  EXPECT_TRUE(
      absl::IsFailedPrecondition(Prepare(node, PlanOf(1, 6, {0})).status()));
}

TEST_F(PartitionsTest, RefusesAVersionThatDoesNotFollow) {
  Partitions node = *Partitions::Install(install_);
  PrepareOne(node, 1, 7);
  EXPECT_TRUE(absl::IsFailedPrecondition(Commit(node, 1, 9).status()));
}

TEST_F(PartitionsTest, KeepsOnlyTheVersionsThatMayStillBeRead) {
  Partitions node = *Partitions::Install(install_);
  PrepareOne(node, 1, 7);
  ASSERT_TRUE(node.Carry(command::Commit{.transaction = 1,
                                         .version = Version(8),
                                         .held = {Version(7)}})
                  .ok());
  EXPECT_EQ(WeightAt(node, 7), 20);
  PrepareOne(node, 2, 8);
  ASSERT_TRUE(Commit(node, 2, 9).ok());
  EXPECT_EQ(node.Read(Version(7)), nullptr);
  EXPECT_EQ(node.Read(Version(8)), nullptr);
  EXPECT_EQ(WeightAt(node, 9), 12);
}

TEST_F(PartitionsTest, AnUpdateChangesWhatTheOneBeforeHasPrepared) {
  Partitions node = *Partitions::Install(install_);
  CommitPlan first = PlanOf(1, 7, {0});
  first.continues = true;
  CommitPlan second = PlanOf(2, 7, {0});
  second.update = 1;
  ASSERT_TRUE(Hold(node, 0, 1, 4).ok());
  const auto folds = OkValue(Prepare(node, first));
  // It is not prepared yet.
  EXPECT_TRUE(absl::IsFailedPrecondition(Prepare(node, second).status()));
  ASSERT_TRUE(Run(node, folds.front()).prepared);
  EXPECT_TRUE(absl::IsFailedPrecondition(Prepare(node, first).status()));
  EXPECT_EQ(OkValue(node.Carry(command::Prepare{second})).over->id(), 1);
  EXPECT_EQ(node.newest(), Version(7));
  const auto more = OkValue(Hold(node, 0, 1, 2));
  ASSERT_THAT(more, SizeIs(1));
  ASSERT_TRUE(Run(node, more.front()).prepared);
  Partitions given_up = node;
  ASSERT_TRUE(Commit(node, 2, 8).ok());
  EXPECT_EQ(WeightAt(node, 7), -1);
  EXPECT_EQ(WeightAt(node, 8), 20 - 4 * 1 - 2 * 1);
  ASSERT_TRUE(given_up.Carry(command::Abort{.transaction = 2}).ok());
  PrepareOne(given_up, 3, 7);
  ASSERT_TRUE(Commit(given_up, 3, 8).ok());
  EXPECT_EQ(WeightAt(given_up, 8), 16);
}

// A step that is not finite makes a version without changing the weights.
TEST_F(PartitionsTest, ASkippedStepKeepsTheWeightsUnderTheNextVersion) {
  Partitions node = *Partitions::Install(install_);
  PrepareOne(node, 1, 7);
  ASSERT_TRUE(
      node.Carry(command::Abort{.transaction = 1, .skipped = Version(8)}).ok());
  EXPECT_EQ(WeightAt(node, 8), 20);
  EXPECT_TRUE(Prepare(node, PlanOf(2, 8, {1})).ok());
}

TEST_F(PartitionsTest, SendsWhatIsPreparedBeforeTheCommitAndHeldVersionsAfter) {
  Partitions node = *Partitions::Install(install_);
  const command::SendWeights send{.partition = 1, .version = Version(8)};
  EXPECT_TRUE(absl::IsOutOfRange(node.Carry(send).status()));
  PrepareOne(node, 1, 7);
  ASSERT_TRUE(node.Carry(send).ok());
  EXPECT_EQ(*node.Carry(send)->weights->weights->data(), 16);
  ASSERT_TRUE(Commit(node, 1, 8).ok());
  EXPECT_EQ(*node.Carry(send)->weights->weights->data(), 16);
}

TEST_F(PartitionsTest, AnotherOptimizerGetsItsSlotsForOwnPartitionsOnly) {
  Partitions node = *Partitions::Install(install_);
  ASSERT_TRUE(Adopt(node, "optimizer", "momentum").ok());
  PrepareOne(node, 1, 7);
  ASSERT_TRUE(Commit(node, 1, 8).ok());
  const SharedSnapshot next = node.Read(Version(8));
  EXPECT_NE(next->slots[1].velocity, nullptr);
  EXPECT_EQ(next->slots[0].velocity, nullptr);
  EXPECT_FALSE(Adopt(node, "no_such_setting", "1").ok());
}

// A checkpoint of the version may still be on its way, with the settings of
// before.
TEST_F(PartitionsTest, AChangeLeavesTheCommittedVersionAsItWas) {
  auto before = std::make_shared<ModelSnapshot>(*install_.snapshot);
  before->slots[1].velocity = BufferOf({3});
  install_.snapshot = before;
  install_.settings.optimizer.kind = OptimizerKind::kMomentum;
  Partitions node = *Partitions::Install(install_);
  ASSERT_TRUE(Adopt(node, "optimizer", "sgd").ok());
  const SharedSnapshot committed = node.Read(Version(7));
  ASSERT_NE(committed->slots[1].velocity, nullptr);
  EXPECT_EQ(*committed->slots[1].velocity->data(), 3);
  // And back again, before a step: nothing has changed.
  ASSERT_TRUE(Adopt(node, "optimizer", "momentum").ok());
  PrepareOne(node, 1, 7);
  ASSERT_TRUE(Commit(node, 1, 8).ok());
  const Slots& slots = node.Read(Version(8))->slots[1];
  EXPECT_FLOAT_EQ(*slots.velocity->data(), 0.9F * 3 + 4);
}

// Shard 0 knows the norm over all partitions.
TEST_F(PartitionsTest, AClippedStepWaitsForItsFactor) {
  Partitions node = *Partitions::Install(install_);
  ASSERT_TRUE(Adopt(node, "clip_norm", "1").ok());
  ASSERT_TRUE(Hold(node, 0, 1, 4).ok());
  const auto folds = OkValue(Prepare(node, PlanOf(1, 7, {0})));
  const command::Scale scale{.transaction = 1, .scales = {.clip = 0.5}};
  EXPECT_TRUE(absl::IsFailedPrecondition(node.Carry(scale).status()));
  const FoldReport first = Run(node, folds.front());
  EXPECT_FALSE(first.prepared);
  ASSERT_THAT(first.norms, SizeIs(1));
  EXPECT_EQ(first.norms[0].gradient, 16);
  EXPECT_THAT(node.Carry(command::Scale{.transaction = 1,
                                        .scales = {.trust_ratios = {1, 1}}}),
              IsError(kInvalidArgument, ""));
  const auto second = OkValue(node.Carry(scale)).folds;
  ASSERT_THAT(second, SizeIs(1));
  EXPECT_TRUE(Run(node, second.front()).prepared);
  EXPECT_TRUE(absl::IsFailedPrecondition(node.Carry(scale).status()));
  ASSERT_TRUE(Commit(node, 1, 8).ok());
  EXPECT_EQ(WeightAt(node, 8), 18);
}

// The second factors are those of the update, whose norm is the decay's here:
// the gradient is 0.
TEST_F(PartitionsTest, LambIsScaledTwice) {
  install_.settings.optimizer.kind = OptimizerKind::kLamb;
  install_.settings.optimizer.weight_decay = 0.5;
  Partitions node = *Partitions::Install(install_);
  ASSERT_TRUE(Hold(node, 0, 1, 0).ok());
  const auto folds = OkValue(Prepare(node, PlanOf(1, 7, {0})));
  EXPECT_EQ(Run(node, folds.front()).norms[0], SliceNorm());
  const auto second =
      OkValue(node.Carry(command::Scale{.transaction = 1})).folds;
  ASSERT_THAT(second, SizeIs(1));
  const command::Scale last{.transaction = 1,
                            .scales = {.trust_ratios = {1, 2, 1}}};
  EXPECT_TRUE(absl::IsFailedPrecondition(node.Carry(last).status()));
  const FoldReport measured = Run(node, second.front());
  EXPECT_FALSE(measured.prepared);
  ASSERT_THAT(measured.norms, SizeIs(1));
  EXPECT_EQ(measured.norms[0], (SliceNorm{.gradient = 100, .weights = 400}));
  const auto third = OkValue(node.Carry(last)).folds;
  ASSERT_THAT(third, SizeIs(1));
  EXPECT_TRUE(Run(node, third.front()).prepared);
  EXPECT_TRUE(absl::IsFailedPrecondition(node.Carry(last).status()));
  ASSERT_TRUE(Commit(node, 1, 8).ok());
  EXPECT_EQ(WeightAt(node, 8), 0);
}

TEST_F(PartitionsTest, AFactorThatComesAfterAnAbortChangesNothing) {
  Partitions node = *Partitions::Install(install_);
  ASSERT_TRUE(Prepare(node, PlanOf(1, 7, {0})).ok());
  ASSERT_TRUE(node.Carry(command::Abort{.transaction = 1}).ok());
  const auto none = OkValue(node.Carry(command::Scale{.transaction = 1})).folds;
  EXPECT_THAT(none, IsEmpty());
}

TEST_F(PartitionsTest, RefusesAModelWithoutItsOwnWeights) {
  auto without = std::make_shared<ModelSnapshot>(*install_.snapshot);
  without->weights[1] = nullptr;
  install_.snapshot = without;
  EXPECT_TRUE(absl::IsInvalidArgument(Partitions::Install(install_).status()));
}

TEST_F(PartitionsTest, AveragesAreReadInPlaceOfTheWeights) {
  ModelSnapshot snapshot = *install_.snapshot;
  snapshot.slots[1].average = BufferOf({3});
  EXPECT_EQ(*WeightsToRead(snapshot, /*averages=*/true)[1]->data(), 3);
  EXPECT_EQ(*WeightsToRead(snapshot, /*averages=*/false)[1]->data(), 20);
}

}  // namespace
}  // namespace cohort
