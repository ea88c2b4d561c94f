#include "server/partitions/fold_stage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/float_buffer.h"
#include "kernels/backend.h"
#include "server/core/step/pending_commit.h"
#include "tests/core/float_values.h"
#include "tests/kernels/reference/reference_backend.h"

namespace cohort {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

PushId PushOfRank(int32_t rank) {
  return {.rank = Rank(rank), .key = {.sequence = Sequence(3)}};
}

// Two partitions of one element each, weights 10 and 20.
class FoldStageTest : public ::testing::Test {
 protected:
  FoldStageTest() {
    model_ = ModelOfOnes(2);
    auto base = SnapshotWith({BufferOf({10}), BufferOf({20})});
    base->statistics = std::make_shared<StatisticsSets>();
    base_ = std::move(base);
  }

  // Sums gradients without scaling, with a rate of 1.
  static CommitPlan PlanOf(int64_t transaction, std::vector<int32_t> ranks) {
    CommitPlan plan{.transaction = transaction,
                    .base = Version(7),
                    .learning_rate = 1,
                    .loss_weight = 1};
    for (int32_t rank : ranks) plan.contributors.push_back(PushOfRank(rank));
    return plan;
  }
  std::vector<FoldJob> Prepare(const CommitPlan& plan) {
    return data_.Prepare(
        plan, {.model = model_, .base = base_, .optimizer = optimizer_});
  }
  PendingCommit CommitOf(const CommitPlan& plan) const {
    return PendingCommit(plan, model_, optimizer_);
  }

  std::vector<FoldJob> Hold(int32_t rank, int32_t partition, float gradient) {
    return data_.Hold({.push = PushOfRank(rank),
                       .partition = partition,
                       .gradient = RopeOf(BufferOf({gradient}))});
  }

  // Runs the folds, and those of a second pass, and reports all of them.
  void Run(std::vector<FoldJob> jobs, PendingCommit& commit) {
    while (!jobs.empty()) {
      const int32_t partition = jobs.back().partition;
      if (!commit.HasBegun(partition)) commit.Begin(partition);
      FoldResult result =
          RunFold(jobs.back(), kernels::ReferenceBackend(), pool_);
      jobs.pop_back();
      commit.Take(data_.FoldDone(std::move(result)));
      const std::optional<GradientScales> scales = commit.TakeScales();
      if (scales.has_value()) jobs = data_.Scale(*scales);
    }
  }

  static float WeightOf(const ModelSnapshot& snapshot, size_t partition) {
    return *snapshot.weights[partition]->data();
  }

  OptimizerOptions optimizer_{.kind = OptimizerKind::kSgd, .weight_decay = 0};
  SharedModel model_;
  SharedSnapshot base_;
  FloatBufferPool pool_;
  FoldStage data_;
};

TEST_F(FoldStageTest, GradientsWaitForThePlanThatNamesThem) {
  EXPECT_THAT(Hold(0, 0, 1), IsEmpty());
  EXPECT_THAT(Hold(1, 0, 2), IsEmpty());
  EXPECT_THAT(Hold(2, 0, 4), IsEmpty());
  const CommitPlan plan = PlanOf(1, {0, 2});
  PendingCommit commit = CommitOf(plan);
  Run(Prepare(plan), commit);
  EXPECT_FALSE(commit.complete());
  // The request does not name rank 1.
  EXPECT_THAT(Hold(1, 1, 2), IsEmpty());
  EXPECT_THAT(Hold(0, 1, 1), IsEmpty());
  Run(Hold(2, 1, 4), commit);
  ASSERT_TRUE(commit.complete());
  const SharedSnapshot next = data_.transaction()->Next();
  EXPECT_EQ(next->version, Version(8));
  EXPECT_EQ(WeightOf(*next, 0), 5);
  EXPECT_EQ(WeightOf(*next, 1), 15);
  data_.Commit(1);
  EXPECT_THAT(data_.Drop(PushOfRank(0)), IsEmpty());
  EXPECT_THAT(data_.Drop(PushOfRank(1)), SizeIs(2));
}

TEST_F(FoldStageTest, ContributionsStandInRankOrderWhateverCameFirst) {
  Hold(2, 0, 4);
  Hold(0, 0, 1);
  const std::vector<FoldJob> folds = Prepare(PlanOf(1, {0, 2}));
  ASSERT_THAT(folds, SizeIs(1));
  ASSERT_THAT(folds[0].contributions, SizeIs(2));
  EXPECT_EQ(folds[0].contributions[0].rank, Rank(0));
  EXPECT_EQ(folds[0].contributions[1].rank, Rank(2));
}

TEST_F(FoldStageTest, AbortKeepsWhatWasNotFoldedUntilItIsDropped) {
  Hold(0, 0, 1);
  Hold(0, 1, 1);
  Hold(1, 1, 1);
  std::vector<FoldJob> folds = Prepare(PlanOf(1, {0, 1}));
  ASSERT_THAT(folds, SizeIs(1));
  data_.Abort(1);
  // The fold ends after its transaction was aborted.
  const FoldReport report =
      data_.FoldDone(RunFold(folds[0], kernels::ReferenceBackend(), pool_));
  EXPECT_EQ(report.gradient_bytes, 8);
  EXPECT_FALSE(report.prepared);
  EXPECT_THAT(data_.Drop(PushOfRank(0)), SizeIs(1));
  EXPECT_THAT(data_.Drop(PushOfRank(1)), IsEmpty());
  // The next transaction may begin, and the late report does not affect it.
  const CommitPlan plan = PlanOf(2, {0});
  PendingCommit commit = CommitOf(plan);
  Prepare(plan);
  EXPECT_FALSE(commit.Take(report));
}

TEST_F(FoldStageTest, PushThatIsDroppedUnderWayMayComeAgain) {
  Prepare(PlanOf(1, {0, 1}));
  Hold(0, 0, 1);
  data_.Drop(PushOfRank(0));
  EXPECT_THAT(Hold(1, 0, 1), IsEmpty());
  EXPECT_THAT(Hold(0, 0, 2), SizeIs(1));
}

// Clipping first needs a norm over all partitions.
TEST_F(FoldStageTest, ClippedCommitIsPreparedInTwoPasses) {
  Hold(0, 0, 3);
  Hold(0, 1, 4);
  const CommitPlan plan = PlanOf(1, {0});
  optimizer_.clip_norm = 1;
  PendingCommit commit = CommitOf(plan);
  Run(Prepare(plan), commit);
  ASSERT_TRUE(commit.complete());
  EXPECT_EQ(commit.gradient_norm(), 5);
  const SharedSnapshot next = data_.transaction()->Next();
  EXPECT_FLOAT_EQ(WeightOf(*next, 0), 10 - 0.6);
  EXPECT_FLOAT_EQ(WeightOf(*next, 1), 20 - 0.8);
}

TEST_F(FoldStageTest, NonfiniteGradientIsNamedAndGivesTheSecondPassUp) {
  Hold(0, 0, std::numeric_limits<float>::infinity());
  Hold(0, 1, 4);
  const CommitPlan plan = PlanOf(1, {0});
  optimizer_.clip_norm = 1;
  PendingCommit commit = CommitOf(plan);
  Run(Prepare(plan), commit);
  EXPECT_TRUE(commit.complete());
  ASSERT_TRUE(commit.nonfinite().has_value());
  EXPECT_EQ(commit.nonfinite()->rank, Rank(0));
  EXPECT_EQ(commit.nonfinite()->partition, 0);
  data_.Abort(1);
  EXPECT_THAT(data_.Drop(PushOfRank(0)), IsEmpty());
}

using FoldStageDeathTest = FoldStageTest;

TEST_F(FoldStageDeathTest, SecondPlanWaitsForTheEndOfTheFirst) {
  Prepare(PlanOf(1, {0}));
  EXPECT_DEATH(Prepare(PlanOf(2, {0})), "before another is over");
}

}  // namespace
}  // namespace cohort
