#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "server/core/coordinator.h"
#include "tests/core/fake_cohort.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr auto kSync = StatisticsKind::kSync;
constexpr auto kAsync = StatisticsKind::kAsync;
constexpr auto kChief = StatisticsKind::kChief;
constexpr auto kAfter = StatisticsKind::kAfter;

FakeSetup SetupWith(const std::vector<StatisticsKind>& kinds) {
  FakeSetup setup = SmallSetup();
  setup.options.policy.statistics = kinds;
  return setup;
}

const LayerStatistics& Of(const SharedSnapshot& snapshot, StatisticsKind kind) {
  return FindSet(*snapshot->statistics, kind)->layers.front();
}

// The moments of one batch: {begin, end - 1}, so that all ranges differ.
std::vector<CallMoments> BatchMoments(const Assignment& assignment) {
  const auto a = static_cast<double>(assignment.range.begin);
  const auto b = static_cast<double>(assignment.range.end - 1);
  return {{.layer = 0,
           .call = 0,
           .moments = {.count = 2,
                       .first = {(a + b) / 2},
                       .second = {(a - b) * (a - b) / 2}}}};
}

// Both ranks push a whole epoch, two steps.
void TrainEpoch(FakeCohort& cohort) {
  for (int step = 0; step < 2; ++step) cohort.PushBoth({.w = {1, 1}});
}
// Moments of {1, 2, 3} and {4, 8}; together mean 3.6, M2 29.2.
void PushUnequal(FakeCohort& cohort) {
  cohort.PushBoth({.moments = {.count = 3, .first = {2}, .second = {2}}},
                  {.moments = {.count = 2, .first = {6}, .second = {8}}});
}

// Like TrainEpoch, with both ranks' moments combined.
void TrainEpochTogether(FakeCohort& cohort) {
  for (int64_t step = 0; step < 2; ++step) {
    cohort.ReduceBoth({.step = Version(step)},
                      {.count = 2, .first = {1}, .second = {2}});
    cohort.PushBoth({});
  }
}

// Reports whatever `rank` is assigned to collect or evaluate.
void Work(FakeCohort& cohort, Rank rank) {
  while (cohort.told(rank).kind == AssignmentKind::kCollectMoments) {
    ExpectOk(
        cohort.ReportMoments(rank, BatchMoments(cohort.told(rank))).status());
  }
}

void WorkBoth(FakeCohort& cohort) {
  Work(cohort, kRank0);
  Work(cohort, kRank1);
}
// With many ranks the moments take as much work as a fold.
TEST(CoordinatorStatisticsTest, LongUpdateIsLeftToThePoolAndGivesTheSameBits) {
  FakeCohort here(SetupWith({kSync, kAsync}));
  FakeSetup setup = SetupWith({kSync, kAsync});
  setup.options.moments_inline_max = 1;
  FakeCohort there(setup);
  for (FakeCohort* cohort : {&here, &there}) {
    cohort->Start();
    TrainEpoch(*cohort);
  }
  EXPECT_THAT(here.All<effect::UpdateStatistics>(), IsEmpty());
  EXPECT_THAT(there.All<effect::UpdateStatistics>(), SizeIs(2));
  EXPECT_EQ(*here.snapshot()->statistics, *there.snapshot()->statistics);
}

TEST(CoordinatorStatisticsTest, CommitWaitsForTheUpdateOnThePool) {
  FakeSetup setup = SetupWith({kSync});
  setup.options.moments_inline_max = 1;
  StartedCohort cohort(setup);
  cohort.HoldFolds();
  cohort.PushBoth({.w = {1, 1}});
  cohort.RunFolds();
  ASSERT_THAT(cohort.All<effect::UpdateStatistics>(), SizeIs(1));
  EXPECT_EQ(cohort.snapshot()->version, Version(0));
  cohort.RunFolds();
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
}

// A skipped step computes no statistics.
TEST(CoordinatorStatisticsTest, NonfiniteMomentsOfALocalBatchSkipTheStep) {
  StartedCohort cohort(SetupWith({kSync}));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  cohort.Push(kRank1, {.moments = {.count = 2, .first = {nan}, .second = {1}}});
  cohort.Push(kRank0, {.moments = {.count = 2, .first = {1}, .second = {nan}}});
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
  // Reported in rank order, whichever came first.
  EXPECT_THAT(cohort.log(), HasSubstr("rank 0: moments"));
  EXPECT_EQ(cohort.counter("pushes_skipped"), 2);
}

TEST(CoordinatorStatisticsTest, KindsAreKeptSideBySide) {
  StartedCohort cohort(SetupWith({kChief, kSync}));

  PushUnequal(cohort);
  const SharedSnapshot snapshot = cohort.snapshot();
  ASSERT_EQ(snapshot->statistics->size(), 2);
  EXPECT_EQ(snapshot->statistics->front().kind, kChief);
  EXPECT_FLOAT_EQ(Of(snapshot, kChief).mean[0], 0.2);
  EXPECT_FLOAT_EQ(Of(snapshot, kSync).mean[0], 0.36);
}

// One worker, each push a whole nominal step, never stale.
TEST(CoordinatorStatisticsTest, OneAsynchronousWorkerIsLocalBatchNormToTheBit) {
  std::vector<LayerStatistics> ends;
  for (auto aggregation : {AggregationKind::kSync, AggregationKind::kAsync}) {
    FakeSetup setup = SmallSetup();
    setup.options.workers = 1;
    setup.options.epochs = 5;
    setup.batch_sizes = {4};
    setup.options.policy = {.aggregation = aggregation,
                            .normalization = NormalizationKind::kLocal,
                            .statistics = {}};
    StartedCohort cohort(setup);
    for (int step = 0; step < 10; ++step) {
      cohort.EvaluateAll();
      cohort.Push(kRank0, {.moments = {.count = 3,
                                       .first = {0.7 * step + 0.1},
                                       .second = {1.3 + step / 3.0}}});
    }
    ASSERT_EQ(cohort.snapshot()->version, Version(10));
    const StatisticsSet& set = cohort.snapshot()->statistics->front();
    EXPECT_EQ(set.kind, aggregation == AggregationKind::kSync ? kSync : kAsync);
    ends.push_back(set.layers.front());
  }
  EXPECT_EQ(ends[0], ends[1]);
}

TEST(CoordinatorStatisticsTest, EachKindIsEvaluated) {
  StartedCohort cohort(SetupWith({kSync, kChief}));
  TrainEpoch(cohort);
  EXPECT_EQ(cohort.told(kRank0).statistics, "sync");
  EXPECT_EQ(cohort.told(kRank1).statistics, "sync");
  ASSERT_TRUE(cohort.Report(kRank0).ok());
  EXPECT_EQ(cohort.told(kRank0).kind, AssignmentKind::kEvaluate);
  EXPECT_EQ(cohort.told(kRank0).statistics, "chief");
  EXPECT_EQ(cohort.told(kRank0).version, Version(2));
  cohort.EvaluateAll();
  const auto evaluated = cohort.Only<effect::Evaluated>();
  ASSERT_EQ(evaluated.record.results.size(), 2);
  EXPECT_EQ(evaluated.record.results[0].statistics, kSync);
  EXPECT_EQ(evaluated.record.results[1].statistics, kChief);
  EXPECT_EQ(evaluated.record.results[1].sums.samples, 4);
  EXPECT_TRUE(cohort.core().ended());
}

// The batch's own statistics are not stored. The evaluation's assignment says
// to use them, and which normalisation the policy trains with.
TEST(CoordinatorStatisticsTest, TheBatchesOwnAreEvaluatedAndNotKept) {
  constexpr StatisticsKind kBatch = StatisticsKind::kBatch;
  StartedCohort cohort(SetupWith({kSync, kBatch}));
  const LayerStatistics initial = Of(cohort.snapshot(), kBatch);
  TrainEpoch(cohort);
  EXPECT_EQ(Of(cohort.snapshot(), kBatch), initial);
  EXPECT_NE(Of(cohort.snapshot(), kSync), initial);
  ASSERT_TRUE(cohort.Report(kRank0).ok());
  EXPECT_EQ(cohort.told(kRank0).kind, AssignmentKind::kEvaluate);
  EXPECT_EQ(cohort.told(kRank0).statistics, kBatchStatistics);
  EXPECT_FALSE(cohort.told(kRank0).global_normalization);
  cohort.EvaluateAll();
  const auto evaluated = cohort.Only<effect::Evaluated>();
  ASSERT_EQ(evaluated.record.results.size(), 2);
  EXPECT_EQ(evaluated.record.results[1].statistics, kBatch);
}

TEST(CoordinatorStatisticsTest, AnEvaluationIsToldHowThePolicyTrains) {
  FakeSetup setup = GlobalSetup();
  setup.options.policy.statistics = {kSync, StatisticsKind::kBatch};
  StartedCohort cohort(setup);
  TrainEpochTogether(cohort);
  ASSERT_EQ(cohort.told(kRank0).kind, AssignmentKind::kEvaluate);
  EXPECT_TRUE(cohort.told(kRank0).global_normalization);
}

// The batches are each rank's own, {0 1 2} {3} {4 5 6} {7}. BatchMoments maps
// them to {0 2} {3 3} {4 6} {7 7}: mean 4, M2 44.
TEST(CoordinatorStatisticsTest, AfterIsCollectedAtTheEndThenAllAreEvaluated) {
  StartedCohort cohort(SetupWith({kSync, kAfter}));
  TrainEpoch(cohort);
  const SharedSnapshot trained = cohort.snapshot();
  EXPECT_EQ(Of(trained, kAfter), (LayerStatistics{{0}, {1}, 0}));
  for (Rank rank : {kRank0, kRank1}) {
    EXPECT_EQ(cohort.told(rank).kind, AssignmentKind::kCollectMoments);
    EXPECT_EQ(cohort.told(rank).version, Version(2));
    EXPECT_EQ(cohort.told(rank).split, DataSplit::kTrain);
    EXPECT_EQ(cohort.told(rank).data_epoch, 0);
    EXPECT_FALSE(cohort.told(rank).global_normalization);
  }
  EXPECT_EQ(cohort.told(kRank0).range, (IndexRange{0, 3}));
  EXPECT_EQ(cohort.told(kRank1).range, (IndexRange{3, 4}));
  EXPECT_TRUE(cohort.All<effect::Evaluated>().empty());
  WorkBoth(cohort);
  cohort.EvaluateAll();

  ASSERT_TRUE(cohort.core().ended());
  const SharedSnapshot end = cohort.snapshot();
  EXPECT_EQ(end->version, trained->version);
  EXPECT_EQ(WeightChecksums(*end), WeightChecksums(*trained));
  EXPECT_EQ(Of(end, kSync), Of(trained, kSync));
  EXPECT_FLOAT_EQ(Of(end, kAfter).mean[0], 4);
  EXPECT_FLOAT_EQ(Of(end, kAfter).variance[0], 44 / 7.0);
  EXPECT_EQ(Of(end, kAfter).num_batches_tracked, 4);
  const auto evaluated = cohort.Only<effect::Evaluated>();
  EXPECT_EQ(evaluated.record.version, Version(2));
  EXPECT_EQ(evaluated.record.epochs, 1);
  ASSERT_EQ(evaluated.record.results.size(), 2);
  EXPECT_EQ(evaluated.record.results[1].statistics, kAfter);
  EXPECT_EQ(cohort.All<effect::RunEnded>().front().version, end->pin);
}

TEST(CoordinatorStatisticsTest, ABatchIsAWholeStepUnderGlobalNormalization) {
  FakeSetup setup = GlobalSetup();
  setup.options.policy.statistics = {kAfter};
  StartedCohort cohort(setup);
  TrainEpochTogether(cohort);
  EXPECT_EQ(cohort.told(kRank0).kind, AssignmentKind::kCollectMoments);
  EXPECT_EQ(cohort.told(kRank0).range, (IndexRange{0, 4}));
  EXPECT_EQ(cohort.told(kRank1).range, (IndexRange{4, 8}));
  EXPECT_FALSE(cohort.told(kRank0).global_normalization);
}

TEST(CoordinatorStatisticsTest, WhoComputesWhatLeavesNoTrace) {
  std::vector<LayerStatistics> ends;
  for (int who = 0; who < 3; ++who) {
    StartedCohort cohort(SetupWith({kAfter}));
    TrainEpoch(cohort);
    if (who == 0) Work(cohort, kRank0);
    if (who == 2) {
      // Reports alternate, the later batches first.
      for (int i = 0; i < 3; ++i) {
        const Rank rank = i % 2 == 0 ? kRank1 : kRank0;
        const auto& told = cohort.told(rank);
        ASSERT_TRUE(cohort.ReportMoments(rank, BatchMoments(told)).ok());
      }
    }
    Work(cohort, kRank1);
    Work(cohort, kRank0);
    ends.push_back(Of(cohort.snapshot(), kAfter));
  }
  EXPECT_EQ(ends[0], ends[1]);
  EXPECT_EQ(ends[0], ends[2]);
}

TEST(CoordinatorStatisticsTest, ALostRanksBatchIsTakenByAnother) {
  StartedCohort cohort(Continuing(SetupWith({kAfter})));
  TrainEpoch(cohort);
  ASSERT_EQ(cohort.told(kRank1).range, (IndexRange{3, 4}));
  cohort.Leave(kRank1);
  Work(cohort, kRank0);
  cohort.EvaluateAll();
  EXPECT_TRUE(cohort.core().ended());
  EXPECT_FLOAT_EQ(Of(cohort.snapshot(), kAfter).mean[0], 4);
}

TEST(CoordinatorStatisticsTest, AReplacementGetsTheLostRanksBatch) {
  StartedCohort cohort(SetupWith({kAfter}));
  TrainEpoch(cohort);
  cohort.Leave(kRank1);
  ExpectOk(cohort.ReportMoments(kRank0, BatchMoments(cohort.told(kRank0))));
  EXPECT_EQ(cohort.told(kRank0).range, (IndexRange{3, 4}));
  cohort.StartOne(kRank1);
  EXPECT_EQ(cohort.told(kRank1).kind, AssignmentKind::kCollectMoments);
  Work(cohort, kRank1);
  Work(cohort, kRank0);
  cohort.EvaluateAll();
  EXPECT_TRUE(cohort.core().ended());
}

TEST(CoordinatorStatisticsTest, ARepeatedReportIsCountedOnce) {
  StartedCohort cohort(SetupWith({kAfter}));
  TrainEpoch(cohort);
  const Assignment first = cohort.told(kRank0);
  ASSERT_TRUE(cohort.ReportMoments(kRank0, BatchMoments(first)).ok());
  const Assignment second = cohort.told(kRank0);
  Effects out;
  const Assignment again = OkValue(cohort.core().ReportMoments(
      cohort.sender(kRank0), first.sequence, BatchMoments(second),
      absl::Seconds(100), out));
  EXPECT_EQ(again.sequence, second.sequence);
  WorkBoth(cohort);
  EXPECT_FLOAT_EQ(Of(cohort.snapshot(), kAfter).mean[0], 4);
}

TEST(CoordinatorStatisticsTest, RefusesMomentsThatDoNotFit) {
  StartedCohort cohort(SetupWith({kAfter}));
  TrainEpoch(cohort);
  std::vector<CallMoments> calls = BatchMoments(cohort.told(kRank0));
  calls[0].layer = 1;
  EXPECT_THAT(cohort.ReportMoments(kRank0, calls),
              IsError(kInvalidArgument, "got layer 1, want below 1"));
  calls[0].layer = 0;
  calls[0].moments.second = {-1};
  EXPECT_THAT(cohort.ReportMoments(kRank0, calls).status().message(),
              HasSubstr("negative M2"));
  calls = BatchMoments(cohort.told(kRank0));
  calls.push_back(calls[0]);
  EXPECT_THAT(cohort.ReportMoments(kRank0, calls),
              IsError(kInvalidArgument, "bn call 0 are out of order"));
  EXPECT_THAT(cohort.Report(kRank0),
              IsError(kFailedPrecondition, "this kind of report"));
}

// Only the collected statistics describe the weights at an epoch's end.
TEST(CoordinatorStatisticsTest, AfterAloneIsEvaluatedAtTheEndOnly) {
  FakeSetup setup = SetupWith({kAfter});
  setup.options.epochs = 2;
  StartedCohort cohort(setup);
  TrainEpoch(cohort);
  EXPECT_EQ(cohort.told(kRank0).kind, AssignmentKind::kTrain);
  TrainEpoch(cohort);
  WorkBoth(cohort);
  cohort.EvaluateAll();
  EXPECT_EQ(cohort.Only<effect::Evaluated>().record.epochs, 2);
  EXPECT_TRUE(cohort.core().ended());
}

TEST(CoordinatorStatisticsTest, EpochsAreEvaluatedWithTheOtherKinds) {
  FakeSetup setup = SetupWith({kAfter, kChief});
  setup.options.epochs = 2;
  StartedCohort cohort(setup);
  TrainEpoch(cohort);
  EXPECT_EQ(cohort.told(kRank0).statistics, "chief");
  cohort.EvaluateAll();
  const auto evaluated = cohort.Only<effect::Evaluated>();
  ASSERT_EQ(evaluated.record.results.size(), 1);
  EXPECT_EQ(evaluated.record.results[0].statistics, kChief);
}

TEST(CoordinatorStatisticsTest, ADrainedRunCollectsOnlyWhatItExports) {
  for (bool first : {true, false}) {
    FakeSetup setup = SetupWith(first ? std::vector{kAfter, kSync}
                                      : std::vector{kSync, kAfter});
    setup.options.epochs = 2;
    StartedCohort cohort(setup);
    cohort.Drain("enough");
    cohort.PushBoth({});
    EXPECT_EQ(cohort.core().ended(), !first);
    if (!first) continue;
    WorkBoth(cohort);
    cohort.EvaluateAll();
    EXPECT_TRUE(cohort.core().ended());
    EXPECT_EQ(cohort.All<effect::RunEnded>()[0].outcome, RunOutcome::kDrained);
    EXPECT_FLOAT_EQ(Of(cohort.snapshot(), kAfter).mean[0], 4);
  }
}

// The moments are there before the evaluation of the epoch's end is.
TEST(CoordinatorStatisticsTest, ADrainedRunEvaluatesWhatItExports) {
  FakeSetup setup = AsyncSetup();
  setup.options.policy.aggregation = AggregationKind::kBounded;
  setup.options.policy.lead_max = 1;
  setup.options.policy.statistics = {kAfter, kAsync};
  setup.options.epochs = 2;
  StartedCohort cohort(setup);
  TrainEpoch(cohort);
  cohort.Drain("enough");
  ASSERT_EQ(cohort.told(kRank0).kind, AssignmentKind::kEvaluate);
  ExpectOk(cohort.Report(kRank1).status());
  Work(cohort, kRank1);
  ExpectOk(cohort.Report(kRank0).status());
  cohort.EvaluateAll();
  EXPECT_TRUE(cohort.core().ended());
  const auto evaluated = cohort.All<effect::Evaluated>();
  ASSERT_THAT(evaluated, SizeIs(2));
  EXPECT_EQ(evaluated[1].record.results[0].statistics, kAfter);
}

TEST(CoordinatorStatisticsTest, WhatIsNotFiniteIsNamedAndLeavesAfterAsItWas) {
  StartedCohort cohort(SetupWith({kAfter, kSync}));
  TrainEpoch(cohort);
  std::vector<CallMoments> calls = BatchMoments(cohort.told(kRank1));
  calls[0].moments.first[0] = std::numeric_limits<double>::infinity();
  ASSERT_TRUE(cohort.ReportMoments(kRank1, calls).ok());
  WorkBoth(cohort);
  EXPECT_THAT(
      cohort.log(),
      HasSubstr("rank 1: moments of bn are not finite in batch 1 at step 2"));
  cohort.EvaluateAll();
  EXPECT_TRUE(cohort.core().ended());
  EXPECT_EQ(Of(cohort.snapshot(), kAfter), (LayerStatistics{{0}, {1}, 0}));
  EXPECT_EQ(cohort.Only<effect::Evaluated>().record.results[0].statistics,
            kSync);
}

// Each batch's moments fit into float32, and those of all together do not.
TEST(CoordinatorStatisticsTest, WhatOverflowsTogetherLeavesAfterAsItWas) {
  StartedCohort cohort(SetupWith({kAfter, kSync}));
  TrainEpoch(cohort);
  std::vector<CallMoments> calls = BatchMoments(cohort.told(kRank1));
  calls[0].moments.first[0] = 1e30;
  ASSERT_TRUE(cohort.ReportMoments(kRank1, calls).ok());
  WorkBoth(cohort);
  EXPECT_THAT(cohort.log(), HasSubstr("combined moments of bn"));
  cohort.EvaluateAll();
  EXPECT_EQ(Of(cohort.snapshot(), kAfter), (LayerStatistics{{0}, {1}, 0}));
}

// Neither a checkpoint nor another worker would take them.
TEST(CoordinatorStatisticsTest, RefusesWhatNoVersionMayHave) {
  StartedCohort cohort(SetupWith({kSync}));
  cohort.Send(kRank0, {}, {0, 1});
  const auto written = [](const LayerStatistics& values) {
    return PushClosing{
        .batch_norm_calls = {1},
        .moments = {{.moments = {.count = 2, .first = {0}, .second = {2}}}},
        .changes = {{.layer = 0, .writes = {{.values = values}}}}};
  };
  EXPECT_THAT(cohort.Close(kRank0, written({{0}, {-1}, 0})),
              IsError(kInvalidArgument, "negative variance"));
  EXPECT_THAT(cohort.Close(kRank0, written({{0}, {1}, int64_t{1} << 51})),
              IsError(kInvalidArgument, "batches tracked"));
  ExpectOk(cohort.Close(kRank0, written({{0}, {0}, int64_t{1} << 50})));
}

TEST(CoordinatorStatisticsTest, WithoutBatchNormThereIsNothingToCollect) {
  FakeSetup setup = SetupWith({kAfter, kSync});
  setup.layout.batch_norms[0].track_statistics = false;
  StartedCohort cohort(setup);
  EXPECT_THAT(cohort.Collect(),
              IsError(kFailedPrecondition, "moving statistics"));
  TrainEpoch(cohort);
  cohort.EvaluateAll();
  EXPECT_TRUE(cohort.core().ended());
  EXPECT_EQ(cohort.All<effect::Evaluated>()[0].record.results.size(), 1);
}

// Requested after the first of four steps: the statistics of version 1 are
// collected while the second step waits, published beside that version, and
// evaluated.
TEST(CoordinatorStatisticsTest, IsCollectedOnRequestWhileTrainingGoesOn) {
  FakeSetup setup = SetupWith({kSync, kAfter});
  setup.options.epochs = 2;
  StartedCohort cohort(setup);
  cohort.Push(kRank0, {.w = {1, 1}});
  const CollectionAnswer answer = OkValue(cohort.Collect());
  EXPECT_EQ(answer.version, Version(0));
  EXPECT_EQ(answer.batches, 4);
  // A second request changes nothing.
  EXPECT_EQ(cohort.Collect()->version, Version(0));
  // The step that rank 0 has computed is committed first.
  cohort.Push(kRank1, {.w = {1, 1}});
  ASSERT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_EQ(cohort.told(kRank0).kind, AssignmentKind::kCollectMoments);
  EXPECT_EQ(cohort.told(kRank0).version, Version(0));
  const SharedVersion pinned = *cohort.core().Read(Version(0));
  EXPECT_EQ(pinned->version, Version(0));
  WorkBoth(cohort);
  EXPECT_EQ(cohort.snapshot()->version, Version(1));
  EXPECT_EQ(Of(cohort.snapshot(), kAfter).num_batches_tracked, 4);
  EXPECT_EQ(Of(cohort.snapshot(), kSync).num_batches_tracked, 1);
  cohort.EvaluateAll();
  const auto evaluated = cohort.Only<effect::Evaluated>();
  EXPECT_TRUE(evaluated.record.on_request);
  EXPECT_EQ(evaluated.record.version, Version(0));
  EXPECT_EQ(evaluated.record.results[0].statistics, kAfter);
  // Training continues, and the end of the run collects again.
  EXPECT_EQ(cohort.told(kRank0).kind, AssignmentKind::kTrain);
  cohort.PushBoth({});
  cohort.EvaluateAll();
  TrainEpoch(cohort);
  EXPECT_EQ(cohort.told(kRank0).kind, AssignmentKind::kCollectMoments);
  EXPECT_EQ(cohort.told(kRank0).version, Version(4));
}

TEST(CoordinatorStatisticsTest, RefusesToCollectWhatIsNotKept) {
  FakeCohort cohort(SetupWith({kSync, kChief}));
  EXPECT_THAT(cohort.Collect(),
              IsError(kFailedPrecondition, "has not started"));
  cohort.Start();
  EXPECT_THAT(cohort.Collect(),
              IsError(kFailedPrecondition, "--bn_statistics: got sync,chief"));
  Effects out;
  EXPECT_THAT(cohort.core().CollectStatistics("other", absl::Seconds(1), out),
              IsError(kFailedPrecondition, "got run other, want run"));
}

TEST(CoordinatorStatisticsTest,
     ARestartKeepsKindsAndStartsNewOnesFromTheFirst) {
  StartedCohort cohort(SetupWith({kChief, kSync}));
  PushUnequal(cohort);
  const RunState state = *cohort.State();

  FakeCohort restored(SetupWith({kSync, kAsync}), &state);
  const SharedSnapshot snapshot = restored.snapshot();
  ASSERT_EQ(snapshot->statistics->size(), 2);
  EXPECT_FLOAT_EQ(Of(snapshot, kSync).mean[0], 0.36);
  EXPECT_EQ(Of(snapshot, kAsync), Of(state.snapshot, kChief));
  // From here on each run continues alone.
  restored.Start();
  restored.PushBoth({});
  EXPECT_EQ(Of(restored.snapshot(), kSync).num_batches_tracked, 2);
  EXPECT_EQ(Of(restored.snapshot(), kAsync).num_batches_tracked, 3);
}

TEST(CoordinatorStatisticsTest, AChangeOfTheLiveRunCarriesKindsOver) {
  FakeSetup setup = SetupWith({kSync, kChief});
  setup.options.epochs = 2;
  StartedCohort cohort(setup);
  PushUnequal(cohort);
  // The step in progress still uses the old kinds.
  ASSERT_TRUE(cohort.Change({{"bn_statistics", "chief,after"}}).ok());
  cohort.PushBoth({});
  const StatisticsSets& sets = *cohort.snapshot()->statistics;
  ASSERT_EQ(sets.size(), 2);
  EXPECT_EQ(sets[0].kind, kChief);
  EXPECT_EQ(sets[0].layers.front().num_batches_tracked, 2);
  EXPECT_EQ(sets[1].kind, kAfter);
  EXPECT_EQ(sets[1].layers.front().num_batches_tracked, 2);
  EXPECT_FLOAT_EQ(sets[1].layers.front().mean[0], 0.9 * 0.36);
  EXPECT_THAT(cohort.Only<effect::PolicyChanged>().record.text,
              HasSubstr("after start from those of sync"));
}

TEST(CoordinatorStatisticsTest, ARestartAfterTrainingCollectsThenEnds) {
  StartedCohort cohort(SetupWith({kAfter}));
  TrainEpoch(cohort);
  const RunState state = *cohort.State();
  StartedCohort restored(SetupWith({kAfter}), &state);
  EXPECT_EQ(restored.told(kRank0).kind, AssignmentKind::kCollectMoments);
  WorkBoth(restored);
  const RunState collected = *restored.State();
  restored.EvaluateAll();
  EXPECT_TRUE(restored.core().ended());

  // Once they are collected, only the evaluation remains.
  StartedCohort again(SetupWith({kAfter}), &collected);
  EXPECT_EQ(again.told(kRank0).kind, AssignmentKind::kEvaluate);
  again.EvaluateAll();
  EXPECT_TRUE(again.core().ended());
}

}  // namespace
}  // namespace cohort
