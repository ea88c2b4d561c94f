#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/wire/proto_json.h"
#include "server/ctl/status_text.h"
#include "server/ctl/status_words.h"
#include "tests/ctl/ctl_harness.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(StatusVerbTest, ShowsTheRunAndItsWorkers) {
  CtlHarness ctl;
  const CtlResult result = ctl.Run("status");
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.out,
            absl::StrCat("run            3f2a at ", ctl.server.address(), R"(
connection     not encrypted
state          training, 1 of 2 workers
step           150
epoch          2 of 4, 37 % of the run
loss           0.4312
learning rate  0.05
rate           10 images/s, ETA 25 s
policy         sync, global normalisation, sync statistics, since step 0

rank  state   batch  heard from  cores  memory   via  process
0     live    64     0.3 s ago   1.4    2.0 GiB  shm  host-a, process 12
1     vacant  0      never
)"));
}

TEST(StatusVerbTest, TellsSinceWhenThePolicyIsInForceAndWhatIsToFollow) {
  CtlHarness ctl;
  v1::GetPolicyReply& policy = ctl.server.policy = ChangedPolicy();
  (*policy.mutable_pending())["aggregation"] = "sync";
  policy.set_pending_reason("waiting for worker 1");
  const CtlResult result = ctl.Run("status");
  EXPECT_THAT(result.out,
              HasSubstr("\npolicy         async, local normalisation, async "
                        "statistics, since step 1234\n"
                        "change to      aggregation=sync: waiting for worker "
                        "1\n"));
}

TEST(StatusVerbTest, TellsWhyTheNewestCheckpointCouldNotBeWritten) {
  CtlHarness ctl;
  v1::Status& status = ctl.server.status;
  status.set_checkpoint_problem("checkpoint of step 150 failed; disk full");
  EXPECT_THAT(ctl.Run("status").out,
              HasSubstr("checkpoint of step 150 failed; disk full"));
}

// --max_steps: 20 steps of 32 images, and an epoch has more. The total is an
// estimate, which the last step may exceed.
TEST(EpochTextTest, TellsTheShareOfTheRunWhereverItEnds) {
  v1::Status status;
  status.set_epochs(10);
  EXPECT_EQ(EpochText(status), "0 of 10");
  status.set_samples_total(640);
  status.set_samples(320);
  EXPECT_EQ(EpochText(status), "1 of 10, 50 % of the run");
  status.set_samples(650);
  EXPECT_EQ(EpochText(status), "1 of 10, 100 % of the run");
  status.set_epochs(0);
  EXPECT_EQ(EpochText(status), "none, 100 % of the run");
}

TEST(StatusVerbTest, JsonIsTheServersStatusAndTheConnection) {
  CtlHarness ctl;
  const CtlResult result = ctl.Run("status --json");
  EXPECT_EQ(result.code, 0);
  v1::Status expected = ExampleStatus();
  *expected.mutable_policy() = ExamplePolicy();
  nlohmann::json json = ProtoJson(expected);
  json["server"] = ctl.server.address();
  json["connection"] = {{"encrypted", false},
                        {"client", ""},
                        {"own_certificate_end", nullptr},
                        {"server_certificate_end", nullptr}};
  EXPECT_EQ(result.out, json.dump() + "\n");
  EXPECT_EQ(json["state"], "training, 1 of 2 workers");
  EXPECT_EQ(json["test_accuracy"], nullptr);
  EXPECT_EQ(json["workers"][0]["silent_ms"], 340);
  EXPECT_EQ(json["workers"][1]["silent_ms"], nullptr);
}

v1::Status ShardedStatus() {
  v1::Status status = ExampleStatus();
  status.set_server_unix_us(int64_t{1'000'000'000'000});
  v1::ShardStatus* own = status.add_shards();
  own->set_connected(true);
  own->set_partitions(5);
  own->set_weights_bytes(2048);
  own->set_prepare_seconds(0.0125);
  own->set_prepare_seconds_total(8);
  own->set_holdup_seconds_total(2);
  v1::ShardStatus* lost = status.add_shards();
  lost->set_shard(1);
  lost->set_address("10.0.0.2:7070");
  lost->set_since_unix_s(999'988);
  lost->set_lost_because("killed");
  lost->set_losses(3);
  lost->set_generation(9);
  v1::ShardStatus* never = status.add_shards();
  never->set_shard(2);
  never->set_address("10.0.0.3:7070");
  return status;
}

TEST(StatusVerbTest, ShowsTheShardsWhereThereAreSeveral) {
  CtlHarness ctl;
  ctl.server.on_status = &ShardedStatus;
  EXPECT_THAT(ctl.Run("status").out, HasSubstr(R"(
shard  state          partitions  weights  last prepare  waited for alone  lost  address
0      connected      5           2.0 KiB  12.5 ms       25 %              0     this server
1      gone for 12 s  0           0 B      none yet                        3     10.0.0.2:7070
2      not there yet  0           0 B      none yet                        0     10.0.0.3:7070
)"));
  EXPECT_EQ(ShardsLine(ShardedStatus()), "1 of 3 connected");
}

TEST(StatusVerbTest, JsonSaysWhichShardIsGoneAndWhy) {
  CtlHarness ctl;
  ctl.server.on_status = &ShardedStatus;
  const nlohmann::json shards =
      nlohmann::json::parse(ctl.Run("status --json").out)["shards"];
  ASSERT_EQ(shards.size(), 3u);
  EXPECT_EQ(shards[0]["connected"], true);
  EXPECT_EQ(shards[0]["since_unix_s"], nullptr);
  EXPECT_EQ(shards[0]["prepare_seconds"], 0.0125);
  EXPECT_EQ(shards[1]["connected"], false);
  EXPECT_EQ(shards[1]["since_unix_s"], 999'988);
  EXPECT_EQ(shards[1]["lost_because"], "killed");
  EXPECT_EQ(shards[1]["losses"], 3);
  EXPECT_EQ(shards[1]["prepare_seconds"], nullptr);
}

TEST(StatusVerbTest, ShowsTheRunsName) {
  v1::Status status;
  status.set_run_id("3f2a");
  EXPECT_EQ(RunText(status), "3f2a");
  status.set_run_name("run-3f2a");
  EXPECT_EQ(RunText(status), "run-3f2a");
  status.set_run_name("nightly");
  EXPECT_EQ(RunText(status), "nightly (3f2a)");
  EXPECT_EQ(nlohmann::json::parse(OverviewJson({.status = status}))["run_name"],
            "nightly");
}

TEST(StatusVerbTest, ShowsTheNewestTestMeasures) {
  CtlHarness ctl;
  v1::Status& status = ctl.server.status;
  status.set_test_accuracy(0.875);
  status.set_test_top5_accuracy(0.9921);
  status.set_ended(true);
  EXPECT_THAT(ctl.Run("status").out, HasSubstr("\nloss           0.4312\n"
                                               "test accuracy  87.5 %\n"
                                               "test top-5     99.2 %\n"));
  EXPECT_THAT(ctl.Run("watch").out,
              HasSubstr(", loss 0.4312, test accuracy 87.5 %, 10 images/s"));
}

TEST(StatusVerbTest, ShowsTheMeasuresOfSegmentation) {
  CtlHarness ctl;
  v1::Status& status = ctl.server.status;
  status.set_test_accuracy(0.875);
  status.set_test_miou(0.4125);
  status.add_test_class_iou()->set_iou(0.5);
  status.add_test_class_iou();
  status.add_test_class_iou()->set_iou(0.325);
  status.set_ended(true);
  EXPECT_THAT(ctl.Run("status").out,
              HasSubstr("\nloss           0.4312\n"
                        "test mIoU      41.2 %\n"
                        "IoU by class   0 50.0 %, 1 none, 2 32.5 %\n"
                        "pixel accuracy 87.5 %\n"));
  EXPECT_THAT(ctl.Run("watch").out,
              HasSubstr(", loss 0.4312, test mIoU 41.2 %, 10 images/s"));
}

// A description is text from any worker: it must not move the cursor or break
// the JSON.
TEST(StatusVerbTest, TextsOfWorkersAreMadeHarmless) {
  CtlHarness ctl;
  v1::Status& status = ctl.server.status;
  status.mutable_workers(0)->set_description("\x1b[2Jgone\n\"x\"");
  EXPECT_THAT(ctl.Run("workers list").out,
              HasSubstr("\\x1b[2Jgone\\x0a\"x\"\n"));
  const auto json = nlohmann::json::parse(ctl.Run("workers list --json").out);
  EXPECT_EQ(json["run"], "3f2a");
  EXPECT_EQ(json["workers"][0]["description"], "\x1b[2Jgone\n\"x\"");
}

}  // namespace
}  // namespace cohort
