// What data shards report to shard 0.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/float_buffer.h"
#include "server/partitions/partitions_link.h"
#include "server/run/run_host.h"
#include "tests/fakes/statuses.h"
#include "tests/run_host/run_host_fakes.h"
#include "tests/run_host/thread_worker.h"

namespace cohort {
namespace {

class DeafLink final : public PartitionsLink {
 public:
  void Install(Installation) override {}
  void Send(ShardCommand) override {}
};

class JoinedSession final : public SessionStream {
 public:
  void SendJoined(const effect::Joined& message) override {
    incarnation = message.incarnation;
  }
  void SendAssignment(const Assignment&) override {}
  void SendStepAborted(const effect::StepAborted&) override {}
  void End(const absl::Status&) override {}

  Incarnation incarnation;
};

class AnsweredRegister final : public RegisterStream {
 public:
  void SendAnswer(const absl::StatusOr<RegisterAnswer>& message) override {
    answer = message;
  }
  void End(const absl::Status&) override {}

  absl::StatusOr<RegisterAnswer> answer;
};

// Two shards: the second owns partition 1 of 0, 1 and 2.
class RunHostShardsTest : public ::testing::Test {
 protected:
  static RunHostOptions Options(PartitionsLink& other) {
    RunHostOptions options = TinyRunHostOptions();
    options.coordinator.partition_bytes = 4000;
    options.coordinator.shards = 2;
    options.data_shards = {&other};
    return options;
  }

  void SetUp() override { run_.Start("here"); }
  void TearDown() override { run_.Stop(); }

  void RegisterModel() {
    const auto session = std::make_shared<JoinedSession>();
    const SessionId id = *run_.AdmitSession(session);
    ExpectOk(
        run_.Join(id, {.rank = Rank(0), .run_id = "run", .batch_size = 2}));
    const Sender sender = {
        .run_id = "run", .rank = Rank(0), .incarnation = session->incarnation};
    const auto stream = std::make_shared<AnsweredRegister>();
    ExpectOk(run_.partitions().Admit(run_.partitions().streams(), stream,
                                     /*speaks=*/false));
    const RunPlan plan = ThreadPlan(4);
    ASSERT_TRUE(run_.BeginRegister(sender, ThreadLayout(), plan, stream).ok());
    ASSERT_TRUE(stream->answer.ok());
    std::vector<SharedFloats> values;
    for (const Partition& partition : stream->answer->partitions) {
      values.push_back(std::make_shared<FloatBuffer>(partition.elements));
    }
    ExpectOk(run_.FinishRegister(sender, ThreadLayout(), plan,
                                 std::move(values), {}));
    ASSERT_EQ(run_.partitions().model()->partitions.size(), 3);
  }

  DeafLink link_;
  SilentListener listener_;
  MovedClock clock_;
  RunHost run_{Options(link_), nullptr, clock_, listener_};
};

TEST_F(RunHostShardsTest, FoldBeforeThereIsAModelIsRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(run_.Folded(1, {.partition = 1})));
}

TEST_F(RunHostShardsTest, OnlyTheOwnerFoldsAPartition) {
  RegisterModel();
  EXPECT_TRUE(run_.Folded(1, {.partition = 1}).ok());
  for (const int32_t partition : {-1, 0, 2, 3}) {
    EXPECT_TRUE(
        absl::IsInvalidArgument(run_.Folded(1, {.partition = partition})))
        << partition;
  }
}

TEST_F(RunHostShardsTest, NormsAreThoseOfAllSlices) {
  RegisterModel();
  ASSERT_EQ(run_.partitions().model()->partitions[1].slices.size(), 1);
  EXPECT_TRUE(run_.Folded(1, {.partition = 1, .norms = {SliceNorm()}}).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(
      run_.Folded(1, {.partition = 1, .norms = {SliceNorm(), SliceNorm()}})));
}

TEST_F(RunHostShardsTest, NumbersFitTheModelAndWhatIsUnderWay) {
  RegisterModel();
  const auto refused = [this](FoldReport report) {
    report.partition = 1;
    return absl::IsInvalidArgument(run_.Folded(1, std::move(report)));
  };
  // No gradient is being folded.
  EXPECT_TRUE(refused({.gradient_bytes = 4}));
  EXPECT_TRUE(refused({.gradient_bytes = -4}));
  EXPECT_FALSE(refused({.nonfinite = NonfiniteGradient{.partition = 1}}));
  EXPECT_TRUE(refused({.nonfinite = NonfiniteGradient{.partition = 0}}));
  EXPECT_TRUE(refused({.nonfinite = NonfiniteGradient{.partition = 3}}));
  for (const int32_t slice : {-1, 1}) {
    EXPECT_TRUE(refused(
        {.nonfinite = NonfiniteGradient{.partition = 1, .slice = slice}}));
  }
}

}  // namespace
}  // namespace cohort
