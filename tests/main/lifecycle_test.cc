#include "server/main/lifecycle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace cohort {
namespace {

using ::testing::ElementsAreArray;

using Ending = ServerLifecycle::Ending;
using Events = std::function<void(ServerLifecycle&)>;
using Task = ServerLifecycle::Task;

constexpr auto kFinished = RunOutcome::kFinished;

// What a server with data shards does after some events.
struct Case {
  std::string name;
  Events before;
  // Until it waits or stops.
  std::vector<Task> tasks;
  Ending ending = Ending::kConclude;
  // Why another server continues the run; empty if none does.
  std::string continues;
  bool results_first = false;
  bool ends_shards = false;
};

// Gives up the leaving data shard once its checkpoint is saved.
std::vector<Task> TasksOf(ServerLifecycle& lifecycle) {
  std::vector<Task> tasks;
  do {
    tasks.push_back(lifecycle.TakeTask());
    if (tasks.back() == Task::kSaveForLeaving) {
      lifecycle.LeavingShardSaved("it leaves");
    }
  } while (tasks.back() != Task::kWait && tasks.back() != Task::kStop);
  return tasks;
}

// After `Attached`, all of them.
Events Attached(Events more = [](ServerLifecycle&) {}) {
  return [more = std::move(more)](ServerLifecycle& l) {
    l.Attached();
    more(l);
  };
}

void Check(const Case& one, ServerLifecycle::Options options) {
  SCOPED_TRACE(one.name);
  ServerLifecycle lifecycle(options);
  one.before(lifecycle);
  EXPECT_THAT(TasksOf(lifecycle), ElementsAreArray(one.tasks));
  ASSERT_TRUE(lifecycle.BeginStop());
  EXPECT_EQ(lifecycle.EndsWithResults(), one.results_first);
  EXPECT_EQ(lifecycle.ending(), one.ending);
  EXPECT_EQ(lifecycle.ContinuesBecause(), one.continues);
  EXPECT_EQ(lifecycle.EndsShards(), one.ends_shards);
}

TEST(ServerLifecycleTest, EverySituationHasItsTasksAndItsEnd) {
  const std::vector<Case> cases = {
      {.name = "a stop while it trains",
       .before = Attached([](auto& l) { l.RequestStop(); }),
       .tasks = {Task::kStop}},
      {.name = "the end of the run",
       .before = Attached([](auto& l) { l.RunEnded(kFinished); }),
       .tasks = {Task::kStay, Task::kStop},
       .results_first = true,
       .ends_shards = true},
      {.name = "an end and a stop",
       .before = Attached([](auto& l) {
         l.RequestStop();
         l.RunEnded(RunOutcome::kDrained);
       }),
       .tasks = {Task::kStay, Task::kStop},
       .results_first = true,
       .ends_shards = true},
      {.name = "a failed start",
       .before = [](auto&) {},
       .tasks = {Task::kWait},
       .ending = Ending::kFinishRecorder},
      {.name = "a stop while data shards are awaited",
       .before = [](auto& l) { l.RequestStop(); },
       .tasks = {Task::kStop},
       .ending = Ending::kConcludeWithoutShards},
      {.name = "a stop while they are awaited and one was lost",
       .before =
           [](auto& l) {
             l.ShardLost("it died");
             l.RequestStop();
           },
       .tasks = {Task::kStop},
       .ending = Ending::kConcludeWithoutShards},
      {.name = "a drain while data shards are awaited",
       .before =
           [](auto& l) {
             l.OverBeforeStart();
             l.RunEnded(RunOutcome::kDrained);
           },
       .tasks = {Task::kStay, Task::kStop},
       .results_first = true,
       .ends_shards = true},
      {.name = "a milestone",
       .before = Attached([](auto& l) { l.MilestoneReached(); }),
       .tasks = {Task::kStoreMilestone, Task::kWait}},
      {.name = "a milestone and a stop",
       .before = Attached([](auto& l) {
         l.MilestoneReached();
         l.RequestStop();
       }),
       .tasks = {Task::kStop}},
      {.name = "a leaving data shard",
       .before = Attached([](auto& l) { l.ShardLeaving(2); }),
       .tasks = {Task::kSaveForLeaving, Task::kStop},
       .ending = Ending::kFinishRecorder,
       .continues = "it leaves"},
      {.name = "a milestone comes before a leaving data shard",
       .before = Attached([](auto& l) {
         l.ShardLeaving(1);
         l.MilestoneReached();
       }),
       .tasks = {Task::kStoreMilestone, Task::kSaveForLeaving, Task::kStop},
       .ending = Ending::kFinishRecorder,
       .continues = "it leaves"},
      {.name = "a leaving data shard at the end of the run",
       .before = Attached([](auto& l) {
         l.ShardLeaving(1);
         l.RunEnded(kFinished);
       }),
       .tasks = {Task::kStay, Task::kStop},
       .results_first = true,
       .ends_shards = true},
      {.name = "a leaving data shard and a stop of all",
       .before = Attached([](auto& l) {
         l.ShardLeaving(1);
         l.RequestStop();
       }),
       .tasks = {Task::kStop}},
      {.name = "a lost data shard",
       .before = Attached([](auto& l) {
         l.MilestoneReached();
         l.ShardLeaving(1);
         l.ShardLost("it died");
         l.ShardLost("it died too");
       }),
       .tasks = {Task::kStop},
       .ending = Ending::kFinishRecorder,
       .continues = "it died"},
      {.name = "a lost data shard and a stop",
       .before = Attached([](auto& l) {
         l.ShardLost("it died");
         l.RequestStop();
       }),
       .tasks = {Task::kStop},
       .ending = Ending::kFinishRecorder,
       .continues = "it died"},
      {.name = "a data shard lost after the end",
       .before = Attached([](auto& l) {
         l.RunEnded(kFinished);
         l.ShardLost("it died");
       }),
       .tasks = {Task::kStay, Task::kStop},
       .results_first = true,
       .ends_shards = true}};
  for (const Case& one : cases) Check(one, {.data_shards = true});
}

TEST(ServerLifecycleTest, OnlyARunThatIsDoneStaysUntilItIsStopped) {
  for (const RunOutcome outcome :
       {kFinished, RunOutcome::kDrained, RunOutcome::kWorkerLost,
        RunOutcome::kNonfinite, RunOutcome::kRefused}) {
    ServerLifecycle lifecycle({.exit_when_done = false});
    lifecycle.RunEnded(outcome);
    std::vector<Task> tasks = {Task::kStop};
    if (outcome == kFinished || outcome == RunOutcome::kDrained) {
      tasks.insert(tasks.begin(), Task::kStay);
    }
    EXPECT_THAT(TasksOf(lifecycle), ElementsAreArray(tasks));
    EXPECT_FALSE(lifecycle.LeavingRequested());
    lifecycle.RequestStop();
    EXPECT_TRUE(lifecycle.LeavingRequested());
  }
}

TEST(ServerLifecycleTest, AServerWithoutDataShardsMissesNone) {
  Check({.name = "a stop",
         .before = [](auto& l) { l.RequestStop(); },
         .tasks = {Task::kStop}},
        {});
}

TEST(ServerLifecycleTest, ADataShardIsReleasedAtOnceIfNothingWasDone) {
  ServerLifecycle lifecycle({.data_shards = true});
  EXPECT_TRUE(lifecycle.ShardLeaving(1));
  EXPECT_EQ(lifecycle.TakeTask(), Task::kWait);
  lifecycle.Attached();
  EXPECT_FALSE(lifecycle.ShardLeaving(1));
  EXPECT_EQ(lifecycle.leaving_shard(), 1);
}

// Each of what may come while the checkpoint of a leaving data shard is
// written.
TEST(ServerLifecycleTest, AStopKeepsALeavingDataShardAndAnEndNeedsIt) {
  ServerLifecycle stopped({.data_shards = true});
  Attached([](auto& l) { l.ShardLeaving(1); })(stopped);
  stopped.RequestStop();
  EXPECT_FALSE(stopped.LeavingShardSaved("it leaves"));
  EXPECT_FALSE(stopped.shard_lost());
  ASSERT_TRUE(stopped.BeginStop());
  EXPECT_EQ(stopped.ending(), Ending::kConclude);

  ServerLifecycle ended({.data_shards = true});
  Attached([](auto& l) { l.ShardLeaving(1); })(ended);
  ended.RunEnded(kFinished);
  EXPECT_TRUE(ended.LeavingShardSaved("it leaves"));
  ASSERT_TRUE(ended.BeginStop());
  EXPECT_EQ(ended.ending(), Ending::kConclude);
  EXPECT_EQ(ended.ContinuesBecause(), "");
}

// The first stop writes its own checkpoint; an error of that alone, or the loss
// alone, continues nothing.
TEST(ServerLifecycleTest, ALossDuringAStopCountsIfFilesAreMissing) {
  for (const bool ended : {false, true}) {
    for (const bool lost : {false, true}) {
      for (const bool written : {false, true}) {
        ServerLifecycle lifecycle({.data_shards = true});
        lifecycle.Attached();
        if (ended) lifecycle.RunEnded(kFinished);
        ASSERT_TRUE(lifecycle.BeginStop());
        if (lost) lifecycle.ShardLost("it died");
        EXPECT_EQ(lifecycle.ending(), Ending::kConclude);
        lifecycle.FilesWritten(written);
        EXPECT_EQ(lifecycle.ContinuesBecause(),
                  lost && !written ? "it died" : "");
        EXPECT_EQ(lifecycle.EndsShards(), ended && (written || !lost));
      }
    }
  }
}

TEST(ServerLifecycleTest, WhatIsConcludedIsWrittenOnce) {
  ServerLifecycle lifecycle({.data_shards = true});
  lifecycle.Attached();
  lifecycle.RunEnded(kFinished);
  EXPECT_EQ(lifecycle.TakeTask(), Task::kStay);
  lifecycle.Concluded();
  EXPECT_EQ(lifecycle.TakeTask(), Task::kStop);
  ASSERT_TRUE(lifecycle.BeginStop());
  EXPECT_FALSE(lifecycle.EndsWithResults());
  EXPECT_TRUE(lifecycle.AwaitsLeavers());
  EXPECT_EQ(lifecycle.ending(), Ending::kNothing);
}

TEST(ServerLifecycleTest, AStopBeginsOnceAndIgnoresALaterEnd) {
  ServerLifecycle lifecycle({});
  ASSERT_TRUE(lifecycle.BeginStop());
  EXPECT_FALSE(lifecycle.BeginStop());
  lifecycle.RunEnded(kFinished);
  EXPECT_FALSE(lifecycle.AwaitsLeavers());
  EXPECT_EQ(lifecycle.TakeTask(), Task::kStop);
  EXPECT_FALSE(lifecycle.stopped());
  lifecycle.Stopped();
  EXPECT_TRUE(lifecycle.stopped());
}

}  // namespace
}  // namespace cohort
