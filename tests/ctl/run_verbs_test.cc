#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/ctl/ctl_harness.h"
#include "tests/ctl/prints_error.h"

namespace cohort {
namespace {

using testing::HasSubstr;

TEST(WorkersEvictTest, EvictsTheRankForTheReason) {
  CtlHarness ctl;
  v1::EvictRequest seen;
  ctl.server.on_evict = [&](const v1::EvictRequest& request) {
    seen = request;
    return AtVersion<v1::EvictReply>(12);
  };
  const CtlResult result = ctl.Run("workers evict --rank=1 --reason=slow");
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out, "worker 1 evicted at step 12\n");
  EXPECT_THAT(result.err, HasSubstr("`cohortctl status`"));
  EXPECT_EQ(seen.rank(), 1);
  EXPECT_EQ(seen.reason(), "slow");
  EXPECT_EQ(ctl.Run("workers evict --rank=1 --json").out,
            "{\"rank\":1,\"version\":12}\n");
}

TEST(WorkersEvictTest, RefusalsSayWhereToLook) {
  CtlHarness ctl;
  for (const absl::Status& refusal :
       {absl::InvalidArgumentError("got rank 9, want 0 to 1"),
        absl::FailedPreconditionError("rank 1 is vacant")}) {
    ctl.server.on_evict = [&](const auto&) { return refusal; };
    EXPECT_THAT(ctl.Run("workers evict --rank=1"),
                PrintsError(3, absl::StrCat(refusal.message(),
                                            "\n`cohortctl workers list`")));
  }
  EXPECT_EQ(ctl.Run("workers evict").code, 2);
  EXPECT_EQ(ctl.Run("workers evict --rank=one").code, 3);
}

TEST(WorkersDrainTest, WaitsUntilTheWorkerHasLeft) {
  CtlHarness ctl;
  v1::EvictRequest seen;
  int looks = 0;
  ctl.server.on_status = [&] {
    v1::Status status = ExampleStatus();
    // The first status is read before the request.
    if (++looks < 4) return status;
    status.set_version(152);
    status.mutable_workers(0)->set_state("vacant");
    return status;
  };
  ctl.server.on_evict = [&](const v1::EvictRequest& request) {
    seen = request;
    return v1::EvictReply();
  };
  const CtlResult result = ctl.Run("workers drain --rank=0 --reason=update");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "worker 0 has left at step 152\n");
  EXPECT_TRUE(seen.after_step());
  EXPECT_EQ(seen.reason(), "update");
  EXPECT_EQ(ctl.paused(), absl::Milliseconds(400));
}

TEST(WorkersDrainTest, OneThatStaysIsExitCode6) {
  CtlHarness ctl;
  ctl.server.on_evict = [](const auto&) { return v1::EvictReply(); };
  EXPECT_THAT(ctl.Run("workers drain --rank=0 --timeout=2s"),
              PrintsError(6, "worker 0 is still there"));
}

TEST(RunDrainTest, TellsWhatHappens) {
  CtlHarness ctl;
  std::string reason;
  ctl.server.on_drain = [&](const v1::DrainRequest& request) {
    reason = request.reason();
    return AtVersion<v1::DrainReply>(30);
  };
  const CtlResult result = ctl.Run("run drain --reason=enough");
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, HasSubstr("draining since step 30"));
  EXPECT_EQ(reason, "enough");
  ctl.server.on_drain = [](const auto&) {
    return absl::FailedPreconditionError("the run is already over: done");
  };
  EXPECT_THAT(ctl.Run("run drain"),
              PrintsError(3, "already over: done\n`cohortctl status`"));
}

TEST(RunDrainTest, ARunThatIsOverWaitsForNoDataShard) {
  CtlHarness ctl;
  ctl.server.on_drain = [](const auto&) { return v1::DrainReply(); };
  v1::Status& status = ctl.server.status = StatusWithoutShard();
  status.set_ended(true);
  const CtlResult result = ctl.Run("run drain");
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out, "the run is over at step 150\n");
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(ctl.Run("run drain --json").out, "{\"version\":0}\n");
  ctl.server.on_drain = [](const auto&) {
    return absl::FailedPreconditionError("the run is already over: drained");
  };
  EXPECT_THAT(ctl.Run("run drain").err,
              HasSubstr("already over: drained\n`cohortctl status`"));
}

TEST(RunDrainTest, TellsARunThatIsOverFromOneThatWaits) {
  CtlHarness ctl;
  ctl.server.on_drain = [](const auto&) {
    return AtVersion<v1::DrainReply>(30);
  };
  v1::Status& status = ctl.server.status;
  status.set_phase("waiting");
  status.set_state("waiting for worker 1, 3 s, gives up in 57 s");
  EXPECT_THAT(ctl.Run("run drain").err,
              HasSubstr("up in 57 s\n`cohortctl watch`"));
  status.set_ended(true);
  status.set_version(31);
  const CtlResult over = ctl.Run("run drain");
  EXPECT_EQ(over.out, "the run is over at step 31\n");
  EXPECT_EQ(over.err, "");
  status.set_version(0);
  EXPECT_THAT(ctl.Run("run drain").out, HasSubstr("over at step 0"));
  ctl.server.on_status = [] {
    return absl::UnavailableError("the server is stopping");
  };
  EXPECT_THAT(ctl.Run("run drain").out, HasSubstr("drained at step 30"));
}

// Advice about workers and flags would not help.
TEST(WholeModelTest, NamesTheDataShardThatIsAway) {
  CtlHarness ctl;
  ctl.server.status = StatusWithoutShard();
  absl::Status refusal;
  ctl.server.on_checkpoint = [&] { return refusal; };
  ctl.server.on_export = [&] { return refusal; };
  ctl.server.on_collect = [&] { return refusal; };
  const std::string named =
      "the run waits for data shard 1 at b:7070, gone for 12 s: it has said "
      "nothing for 3 s";
  const std::string hint =
      "\nmend what is named, or start `cohort-server --data_shard`";
  for (const char* verb : {"checkpoint save", "export", "statistics collect"}) {
    refusal = absl::FailedPreconditionError(
        "a part of the model is missing: waiting for data shard 1");
    EXPECT_THAT(ctl.Run(verb), PrintsError(3, "for data shard 1" + hint));
    refusal = absl::FailedPreconditionError("training has not begun");
    EXPECT_THAT(ctl.Run(verb), PrintsError(3, "not begun; " + named + hint));
    // A server that is asked for the weights of a shard that hangs.
    refusal = absl::DeadlineExceededError("too late");
    EXPECT_THAT(ctl.Run(verb).err, HasSubstr("cohortctl: " + named + hint));
  }
}

TEST(CheckpointSaveTest, TellsWhichVersionIsSafe) {
  CtlHarness ctl;
  ctl.server.on_checkpoint = [] { return AtVersion<v1::CheckpointReply>(40); };
  EXPECT_EQ(ctl.Run("checkpoint save").out,
            "checkpoint of step 40 is on disk\n");
  EXPECT_EQ(ctl.Run("checkpoint save --json").out, "{\"version\":40}\n");
}

TEST(CheckpointSaveTest, ServerWithoutADirectoryAndFailedWrite) {
  CtlHarness ctl;
  ctl.server.on_checkpoint = [] {
    return absl::FailedPreconditionError(
        "the server was started without --checkpoint_dir");
  };
  EXPECT_THAT(ctl.Run("checkpoint save"),
              PrintsError(3, "without --checkpoint_dir\n"));
  ctl.server.on_checkpoint = [] { return absl::InternalError("disk full"); };
  EXPECT_THAT(ctl.Run("checkpoint save"), PrintsError(1, "disk full"));
}

TEST(StatisticsCollectTest, TellsHowMuchIsCollected) {
  CtlHarness ctl;
  ctl.server.on_collect = [] {
    v1::CollectStatisticsReply reply;
    reply.set_version(40);
    reply.set_batches(12);
    return reply;
  };
  EXPECT_THAT(ctl.Run("statistics collect").out,
              HasSubstr("12 batches with the weights of step 40"));
  EXPECT_EQ(ctl.Run("statistics collect --json").out,
            "{\"version\":40,\"batches\":12}\n");
  ctl.server.on_collect = [] {
    return absl::FailedPreconditionError("--bn_statistics holds no after");
  };
  EXPECT_THAT(
      ctl.Run("statistics collect"),
      PrintsError(3, "`cohortctl policy set --bn_statistics=sync,after`"));
}

TEST(ExportTest, TellsWhichVersionWasWritten) {
  CtlHarness ctl;
  ctl.server.on_export = [] { return AtVersion<v1::ExportReply>(41); };
  EXPECT_THAT(ctl.Run("export").out, HasSubstr("model.safetensors of step 41"));
}

}  // namespace
}  // namespace cohort
