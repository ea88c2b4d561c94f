#include "server/ctl/study/cluster_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

StudyRun AsyncRun() {
  return {.policy = {.aggregation = "async",
                     .staleness = "scale",
                     .normalization = "local"},
          .condition = {.order = "sorted", .workers = 1, .batch_size = 2},
          .seed = 3,
          .kinds = {"async", "after"}};
}

// A program that replaces the server or worker.
std::string Script(const TempDir& dir, const std::string& name,
                   const std::string& text) {
  const std::string path = dir.File(name);
  WriteText(path, "#!/bin/sh\n" + text);
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

// Writes its address to the file of --address_file=.
constexpr char kListen[] =
    "for flag; do case $flag in\n"
    "--address_file=*) echo 127.0.0.1:1 > ${flag#*=};;\n"
    "--results_dir=*) results=${flag#*=};;\n"
    "esac; done\n";

absl::Status ResultOf(const ClusterPrograms& programs, StudyFolder& folder) {
  const SteadyClock clock;
  const auto job =
      StartClusterJob(AsyncRun(), {.programs = programs}, folder, clock);
  if (!job.ok()) return job.status();
  const Instant end = clock.Now() + absl::Seconds(60);
  while (!(*job)->done() && clock.Now() < end) {
    (*job)->Poll(absl::Milliseconds(20));
  }
  EXPECT_TRUE((*job)->done());
  return (*job)->result();
}

TEST(FlagsTest, ARunGetsWhatAllShareAndWhatItIsAbout) {
  const StudyFlags flags = {.server = {"--epochs=2"}, .worker = {"--limit=8"}};
  EXPECT_THAT(
      ServerFlags(AsyncRun(), flags, "out"),
      ElementsAre("--epochs=2", "--aggregation=async", "--normalization=local",
                  "--bn_statistics=async,after,batch", "--staleness=scale",
                  "--seed=3", "--results_dir=out"));
  EXPECT_THAT(WorkerFlags(AsyncRun(), flags),
              ElementsAre("--limit=8", "--batch_size=2", "--order=sorted"));
}

TEST(FlagsTest, TheEncodingIsAFlagOfTheServer) {
  StudyRun run = AsyncRun();
  run.policy.wire = "bf16";
  EXPECT_THAT(ServerFlags(run, {}, "out"), testing::Contains("--wire=bf16"));
}

TEST(FlagsTest, TheRateIsInProportionToTheImagesOfAStep) {
  StudyRun run = AsyncRun();
  run.condition.workers = 4;
  const StudyFlags flags = {.server = {"--learning_rate=0.4", "--epochs=1"},
                            .reference_images = 64};
  EXPECT_THAT(ServerFlags(run, flags, "out"),
              testing::IsSupersetOf({"--epochs=1", "--learning_rate=0.05"}));
  StudyFlags fixed = flags;
  fixed.server.push_back("--global_batch=32");
  EXPECT_THAT(
      ServerFlags(run, fixed, "out"),
      testing::IsSupersetOf({"--global_batch=32", "--learning_rate=0.2"}));
  EXPECT_TRUE(CheckFlags(flags).ok());
  EXPECT_THAT(CheckFlags({.reference_images = 64}).message(),
              HasSubstr("without --learning_rate"));
}

TEST(FlagsTest, WhatTheStudySetsIsRefused) {
  EXPECT_THAT(CheckFlags({.server = {"--results_dir=x"}}),
              IsError(kInvalidArgument, "--results_dir"));
  EXPECT_THAT(CheckFlags({.worker = {"--batch_size", "4"}}),
              IsError(kInvalidArgument, "--batch_size among the flags"));
  EXPECT_TRUE(CheckFlags({.server = {"--ranking=1"}}).ok());
}

TEST(ClusterJobTest, AWorkerThatDiesEndsTheRunAndIsNamed) {
  const TempDir dir;
  StudyFolder folder =
      *StudyFolder::Open(RealFileSystem(), dir.File("study"), {});
  EXPECT_THAT(
      ResultOf(
          {.server =
               Script(dir, "server", std::string(kListen) + "exec sleep 60\n"),
           .worker = Script(dir, "worker", "echo no such data set; exit 3\n")},
          folder),
      IsError(kInvalidArgument, "worker 0 ended with exit code 3"));
  EXPECT_FALSE(*folder.IsDone(AsyncRun()));
  EXPECT_EQ(ReadText(folder.RunPath(AsyncRun()) + "/worker-0.log"),
            "no such data set\n");
}

TEST(ClusterJobTest, AServerThatFailsIsNamed) {
  const TempDir dir;
  StudyFolder folder =
      *StudyFolder::Open(RealFileSystem(), dir.File("study"), {});
  EXPECT_THAT(
      ResultOf({.server = Script(dir, "server", "echo bad flag; exit 2\n"),
                .worker = Script(dir, "worker", "exit 0\n")},
               folder),
      IsError(kInvalidArgument, "server ended with exit code 2"));
}

TEST(ClusterJobTest, ARunWithoutItsResultsIsNotDone) {
  const TempDir dir;
  StudyFolder folder =
      *StudyFolder::Open(RealFileSystem(), dir.File("study"), {});
  const absl::Status result =
      ResultOf({.server = Script(dir, "server", std::string(kListen)),
                .worker = Script(dir, "worker", "exit 0\n")},
               folder);
  EXPECT_THAT(result.message(), HasSubstr("history.csv"));
  EXPECT_FALSE(*folder.IsDone(AsyncRun()));
}

TEST(ClusterJobTest, AWholeRunIsMarkedAndItsModelIsNotKept) {
  const TempDir dir;
  StudyFolder folder =
      *StudyFolder::Open(RealFileSystem(), dir.File("study"), {});
  const std::string server =
      std::string(kListen) +
      "echo model > $results/model.safetensors\n"
      "{ echo samples,seconds,bn_statistics,test_accuracy,test_miou\n"
      "for kind in async after batch; do echo 1,2,$kind,0.5,; done\n"
      "} > $results/history.csv\n";
  ExpectOk(ResultOf({.server = Script(dir, "server", server),
                     .worker = Script(dir, "worker", "exit 0\n")},
                    folder));
  EXPECT_TRUE(*folder.IsDone(AsyncRun()));
  EXPECT_FALSE(std::filesystem::exists(folder.RunPath(AsyncRun()) +
                                       "/model.safetensors"));
}

}  // namespace
}  // namespace cohort
