#include "server/records/run_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>

#include "common/formats/file_system.h"
#include "tests/checkpoint/example_state.h"
#include "tests/fakes/faulty_file_system.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

using testing::HasSubstr;

// A run whose workers registered this plan.
Checkpoint CheckpointOf(const RunPlan& plan, const SettingValues& settings) {
  auto model = std::make_shared<RegisteredModel>();
  model->layout.parameters = {{.name = "w", .shape = {2}}};
  model->partitions = MakePartitions(model->layout, 1024);
  model->plan = plan;
  auto snapshot = std::make_shared<ModelSnapshot>();
  snapshot->slots.resize(model->partitions.size());
  snapshot->statistics = std::make_shared<StatisticsSets>();
  Checkpoint checkpoint;
  checkpoint.identity.seed = CoordinatorOptions().seed;
  checkpoint.state.model = std::move(model);
  checkpoint.state.snapshot = std::move(snapshot);
  checkpoint.state.settings = settings;
  if (!settings.empty()) {
    checkpoint.state.policy_history = {{.policy_epoch = 1}};
  }
  return checkpoint;
}

const SettingValues kAdam = {{"optimizer", "adam"}, {"learning_rate", "0.003"}};

TEST(ContinuedOptionsTest, AutoContinuesWithTheRunsOptimizer) {
  const Checkpoint checkpoint = CheckpointOf({}, kAdam);
  for (const std::set<std::string>& given :
       {std::set<std::string>(), std::set<std::string>{"optimizer"}}) {
    const auto options = OkValue(ContinuedOptions(
        checkpoint, {.optimizer = {.kind = OptimizerKind::kAuto}}, given));
    EXPECT_EQ(options.optimizer.kind, OptimizerKind::kAdam);
    EXPECT_EQ(options.optimizer.learning_rate, 0.003);
  }
}

TEST(ContinuedOptionsTest, TheLengthIsTheRunsUnlessAFlagSaysOtherwise) {
  Checkpoint checkpoint = CheckpointOf({}, kAdam);
  checkpoint.state.epochs = 12;
  checkpoint.state.max_steps = 70;
  const CoordinatorOptions flags{.optimizer = {.kind = OptimizerKind::kAdam},
                                 .epochs = 30,
                                 .max_steps = 9};
  auto options = ContinuedOptions(checkpoint, flags, {});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->epochs, 12);
  EXPECT_EQ(options->max_steps, 70);
  options = ContinuedOptions(checkpoint, flags, {"epochs"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->epochs, 30);
  EXPECT_EQ(options->max_steps, 70);
  options = ContinuedOptions(checkpoint, flags, {"max_steps"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->epochs, 12);
  EXPECT_EQ(options->max_steps, 9);
}

// For a model of 10 GiB that would be 10 GiB, or 30 with the slots of adam.
TEST(RunFilesTest, TheVersionThatARunBeganWithDoesNotStayInMemory) {
  TempDir dir;
  const RunFilesOptions options{.checkpoint_dir = dir.path() + "/state"};
  {
    const auto files = OkValue(RunFiles::Open(RealFileSystem(), options));
    files->BeginRun({.run_id = "run"});
    ASSERT_TRUE(files->SaveCheckpoint(ExampleState(7)).ok());
  }
  const auto files = OkValue(RunFiles::Open(
      RealFileSystem(),
      {.checkpoint_dir = options.checkpoint_dir, .resume = true}));
  ASSERT_TRUE(files->restored().has_value());
  const std::weak_ptr<const ModelSnapshot> begun =
      files->restored()->state.snapshot;
  files->ForgetRestored();
  EXPECT_TRUE(begun.expired());
  EXPECT_EQ(files->figures().version, 7);
}

// The last version may have a checkpoint from before its evaluation.
TEST(RunFilesTest, TheLastVersionIsWrittenAgainWithTheEndAndThenNoMore) {
  TempDir dir;
  const auto files = OkValue(RunFiles::Open(
      RealFileSystem(), {.checkpoint_dir = dir.path() + "/state"}));
  files->BeginRun({.run_id = "run"});
  RunState state = ExampleState(7);
  ASSERT_TRUE(files->SaveCheckpoint(state).ok());
  state.ended = "all steps are done";
  ASSERT_TRUE(files->SaveCheckpoint(state).ok());
  EXPECT_EQ(files->figures().written, 2);
  state.ended.reset();
  ASSERT_TRUE(files->SaveCheckpoint(state).ok());
  EXPECT_EQ(files->figures().written, 2);
}

TEST(RunFilesTest, TellsWhyTheNewestCheckpointFailedUntilOneIsWritten) {
  TempDir dir;
  int32_t first = 0;
  FaultyFileSystem counted;
  {
    const auto files = OkValue(
        RunFiles::Open(counted, {.checkpoint_dir = dir.path() + "/counted"}));
    first = counted.operations() + 1;
  }
  FaultyFileSystem faulty(
      {.at = first, .error = absl::ResourceExhaustedError("the disk is full")});
  const auto files = OkValue(
      RunFiles::Open(faulty, {.checkpoint_dir = dir.path() + "/state"}));
  files->BeginRun({.run_id = "run"});
  EXPECT_EQ(files->figures().problem, "");
  EXPECT_FALSE(files->SaveCheckpoint(ExampleState(7)).ok());
  EXPECT_EQ(files->figures().failed_disk_full, 1);
  EXPECT_THAT(files->figures().problem,
              HasSubstr("checkpoint of step 7 failed"));
  ASSERT_TRUE(files->SaveCheckpoint(ExampleState(8)).ok());
  EXPECT_EQ(files->figures().problem, "");
}

// As a change that was made before the first step after a restart.
TEST(RunFilesTest, AVersionIsWrittenAgainAfterAChange) {
  TempDir dir;
  RunState state = ExampleState(7);
  const RunFilesOptions options{.checkpoint_dir = dir.path() + "/state"};
  {
    const auto files = OkValue(RunFiles::Open(RealFileSystem(), options));
    files->BeginRun({.run_id = "run"});
    ASSERT_TRUE(files->SaveCheckpoint(state).ok());
    // Nothing has changed.
    files->KeepChange(state);
    files->AwaitWriter();
    EXPECT_EQ(files->figures().written, 1);
    state.settings["learning_rate"] = "0.25";
    ASSERT_TRUE(files->SaveCheckpoint(state).ok());
    EXPECT_EQ(files->figures().written, 2);
    ++state.policy_epoch;
    state.policy_history.push_back({.policy_epoch = state.policy_epoch,
                                    .version = Version(7),
                                    .changed = {{"momentum", "0.5"}}});
    state.settings["momentum"] = "0.5";
    files->KeepChange(state);
    files->AwaitWriter();
    EXPECT_EQ(files->figures().written, 3);
  }
  const auto files = OkValue(RunFiles::Open(
      RealFileSystem(),
      {.checkpoint_dir = options.checkpoint_dir, .resume = true}));
  const RunState& restored = files->restored()->state;
  EXPECT_EQ(restored.settings, state.settings);
  EXPECT_EQ(restored.policy_history.size(), state.policy_history.size());
  // That state is on disk.
  files->BeginRun({.run_id = "run"});
  ASSERT_TRUE(files->SaveCheckpoint(state).ok());
  EXPECT_EQ(files->figures().written, 0);
}

TEST(CheckContinuableTest, OwnDataNeedsTheLimitOfStepsAgain) {
  const Checkpoint checkpoint = CheckpointOf({.own_data = true}, kAdam);
  CoordinatorOptions options{.optimizer = {.kind = OptimizerKind::kAdam}};
  EXPECT_THAT(CheckContinuable(checkpoint, options),
              IsError(kFailedPrecondition, "--max_steps"));
  options.max_steps = 10;
  EXPECT_TRUE(CheckContinuable(checkpoint, options).ok())
      << CheckContinuable(checkpoint, options);
}

}  // namespace
}  // namespace cohort
