#include "server/shard/remote_gradients.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/float_buffer.h"
#include "server/core/coordinator.h"
#include "tests/shard/shard_fakes.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A coordinator of one worker with two shards, and a model of two partitions
// with one element each. The worker computes step 0.
class RemoteGradientsTest : public ::testing::Test {
 protected:
  RemoteGradientsTest()
      : RemoteGradientsTest(Options(),
                            {.parameters = {{.name = "a", .shape = {1}},
                                            {.name = "b", .shape = {1}}}}) {}
  RemoteGradientsTest(const CoordinatorOptions& options, ModelLayout layout)
      : core_(options), layout_(std::move(layout)) {
    plan_.train_samples = 8;
    plan_.loss_reference = 1;
    Effects out;
    EXPECT_TRUE(
        core_.Join(SessionId(1), {.rank = Rank(0), .batch_size = 4}, Now(), out)
            .ok());
    sender_ = {.run_id = "run",
               .rank = Rank(0),
               .incarnation = std::get<effect::Joined>(out[0]).incarnation};
    EXPECT_TRUE(core_.BeginRegister(sender_, layout_, plan_, Now(), out).ok());
    EXPECT_TRUE(core_
                    .FinishRegister(sender_, layout_, plan_, Values(options),
                                    {}, Now(), out)
                    .ok());
    core_.CheckpointStored(Now(), out);
    for (const Effect& e : out) {
      if (const auto* told = std::get_if<effect::Notify>(&e)) {
        assignment_ = told->assignment;
      }
    }
  }

  static CoordinatorOptions Options() {
    CoordinatorOptions options = TinyShardOptions().coordinator;
    options.partition_bytes = sizeof(float);
    options.shards = 2;
    return options;
  }
  static Instant Now() { return absl::Seconds(1); }
  static SharedFloats Ones(int64_t count) {
    auto buffer = std::make_shared<FloatBuffer>(count);
    std::fill_n(buffer->data(), count, 1.0f);
    return buffer;
  }
  std::vector<SharedFloats> Values(const CoordinatorOptions& options) const {
    std::vector<SharedFloats> values;
    for (const Partition& partition :
         MakePartitions(layout_, options.partition_bytes)) {
      values.push_back(Ones(partition.elements));
    }
    return values;
  }
  PushKey Key() const {
    return {.sequence = assignment_.sequence, .attempt = assignment_.attempt};
  }

  RemoteGradient Gradient(int32_t partition, int64_t ticket) const {
    return {.sender = sender_,
            .key = Key(),
            .message = {.partition = partition,
                        .ticket = ticket,
                        .remote_bytes = sizeof(float)}};
  }

  // The tickets that the coordinator takes, negative if it holds nothing new.
  std::vector<int64_t> Offer(Instant now = Now()) {
    Effects out;
    remote_.Offer(Rank(0), core_, now, out, refused_);
    std::vector<int64_t> taken;
    for (const Effect& e : out) {
      if (const auto* one = std::get_if<effect::GradientTaken>(&e)) {
        taken.push_back(one->held ? one->ticket : -one->ticket);
      }
    }
    return taken;
  }

  void Open() {
    Effects out;
    ASSERT_TRUE(core_
                    .Open(sender_, Key(),
                          {.version = assignment_.version,
                           .samples = assignment_.range.size(),
                           .loss_weight = 4},
                          Now(), out)
                    .ok());
  }

  // Makes a step, and returns the number of weights that its verdict announces.
  int32_t WeightsAnnounced(int64_t transaction) {
    Open();
    Effects out;
    GradientMessage own{.partition = 0, .gradient = RopeOf(Ones(1))};
    EXPECT_TRUE(core_.Gradient(sender_, Key(), own, Now(), out).ok());
    remote_.Add(1, Gradient(1, 10 + transaction), Now());
    EXPECT_THAT(Offer(), SizeIs(1));
    for (int32_t partition : {0, 1}) {
      FoldResult result{.transaction = transaction, .partition = partition};
      if (partition == 0) result.weights = Ones(1);
      result.elsewhere = partition == 1;
      core_.Folded({.transaction = transaction,
                    .partition = partition,
                    .gradient_bytes = sizeof(float),
                    .prepared = std::move(result)},
                   Now(), out);
    }
    EXPECT_TRUE(
        core_.Close(sender_, Key(), {.loss_sum = 1, .labels = 4}, Now(), out)
            .ok());
    for (const Effect& e : out) {
      const auto* sent = std::get_if<effect::SendVerdict>(&e);
      if (sent == nullptr) continue;
      assignment_ = sent->verdict.next;
      return sent->weights_partitions;
    }
    return -1;
  }

  Coordinator core_;
  ModelLayout layout_;
  RunPlan plan_;
  Sender sender_;
  Assignment assignment_;
  RemoteGradients remote_{2};
  std::vector<RemoteGradients::Refusal> refused_;
};

TEST_F(RemoteGradientsTest, AGradientThatOvertakesItsOpeningWaitsForIt) {
  remote_.Add(1, Gradient(1, 7), Now());
  EXPECT_THAT(Offer(), IsEmpty());
  Open();
  EXPECT_THAT(Offer(), ElementsAre(7));
  EXPECT_THAT(refused_, IsEmpty());
}

// What follows on a later stream of the same incarnation is answered.
TEST_F(RemoteGradientsTest, AGradientThatIsNotOpenedHoldsUpNoOther) {
  remote_.Add(1, Gradient(1, 7), Now());
  RemoteGradient unknown = Gradient(1, 8);
  unknown.key.sequence = Sequence(99);
  remote_.Add(1, std::move(unknown), Now());
  EXPECT_THAT(Offer(), IsEmpty());
  ASSERT_THAT(refused_, SizeIs(1));
  EXPECT_EQ(refused_[0].ticket, 8);
  Open();
  EXPECT_THAT(Offer(), ElementsAre(7));
}

TEST_F(RemoteGradientsTest, AGradientThatIsNeverOpenedIsRefusedInTheEnd) {
  remote_.Add(1, Gradient(1, 7), Now());
  const Instant late = Now() + RemoteGradients::kOpeningDeadline;
  EXPECT_THAT(remote_.Overdue(late - absl::Seconds(1)), IsEmpty());
  EXPECT_THAT(remote_.Overdue(late), ElementsAre(Rank(0)));
  EXPECT_THAT(Offer(late), IsEmpty());
  ASSERT_THAT(refused_, SizeIs(1));
  EXPECT_EQ(refused_[0].ticket, 7);
  EXPECT_TRUE(absl::IsDeadlineExceeded(refused_[0].status));
  EXPECT_THAT(remote_.Overdue(late), IsEmpty());
}

TEST_F(RemoteGradientsTest, ARepetitionIsTakenAndNotHeld) {
  Open();
  remote_.Add(1, Gradient(1, 7), Now());
  remote_.Add(1, Gradient(1, 8), Now());
  EXPECT_THAT(Offer(), ElementsAre(7, -8));
}

TEST_F(RemoteGradientsTest, APartitionOfAnotherShardIsRefused) {
  Open();
  remote_.Add(1, Gradient(0, 7), Now());
  EXPECT_THAT(Offer(), IsEmpty());
  ASSERT_THAT(refused_, SizeIs(1));
  EXPECT_EQ(refused_[0].ticket, 7);
  EXPECT_TRUE(absl::IsInvalidArgument(refused_[0].status));
}

// The data shards may not know the streams of its connection by then, so that
// it has to read the weights.
TEST_F(RemoteGradientsTest, TheFirstVerdictAfterAJoinAnnouncesNoWeights) {
  EXPECT_EQ(WeightsAnnounced(1), 0);
  EXPECT_EQ(WeightsAnnounced(2), 2);
}

// Partitions 0 and 2, of 8 and 4 bytes, are shard 0's, and partition 1, of 8
// bytes, is the other shard's.
class RoomForRemoteGradientsTest : public RemoteGradientsTest {
 protected:
  RoomForRemoteGradientsTest()
      : RemoteGradientsTest(SmallOptions(),
                            {.parameters = {{.name = "a", .shape = {2}},
                                            {.name = "b", .shape = {3}}}}) {}

  static CoordinatorOptions SmallOptions() {
    CoordinatorOptions options = Options();
    options.partition_bytes = 2 * sizeof(float);
    options.inflight_bytes_max = 12;
    return options;
  }
  absl::StatusOr<Admission> Own(int32_t partition, int64_t elements,
                                Effects& out) {
    GradientMessage message{.partition = partition,
                            .gradient = RopeOf(Ones(elements))};
    return core_.Gradient(sender_, Key(), message, Now(), out);
  }
};

// It is resumed once there is room, whatever the worker's own stream does
// meanwhile.
TEST_F(RoomForRemoteGradientsTest, APausedGradientDoesNotForgetThatItWaits) {
  Open();
  Effects out;
  ASSERT_EQ(*Own(0, 2, out), Admission::kTaken);
  RemoteGradient remote = Gradient(1, 7);
  remote.message.remote_bytes = 8;
  remote_.Add(1, std::move(remote), Now());
  ASSERT_THAT(Offer(), IsEmpty());
  // An effect says when there is room, however long that takes.
  EXPECT_THAT(remote_.Overdue(Now() + absl::Hours(1)), IsEmpty());
  ASSERT_EQ(*Own(2, 1, out), Admission::kTaken);
  out.clear();
  core_.Folded({.transaction = 1,
                .partition = 0,
                .gradient_bytes = 8,
                .prepared = FoldResult{.transaction = 1, .weights = Ones(2)}},
               Now(), out);
  EXPECT_TRUE(std::any_of(out.begin(), out.end(), [](const Effect& e) {
    return std::holds_alternative<effect::ResumeGradients>(e);
  }));
  EXPECT_THAT(Offer(), ElementsAre(7));
}

// What a killed server's workers send before they know is of no use to the
// next one.
TEST_F(RemoteGradientsTest, AnIncarnationOfAnEarlierGenerationIsFenced) {
  Open();
  RemoteGradient old = Gradient(1, 7);
  old.sender.incarnation = Incarnation(sender_.incarnation.value() - 1);
  remote_.Add(1, std::move(old), Now());
  EXPECT_THAT(Offer(), IsEmpty());
  ASSERT_THAT(refused_, SizeIs(1));
  EXPECT_TRUE(absl::IsAborted(refused_[0].status));
}

TEST_F(RemoteGradientsTest, AnInstalledModelKeepsOnlyOwnWeightsHere) {
  const SharedSnapshot current = *core_.Read(std::nullopt);
  EXPECT_NE(current->weights[0], nullptr);
  EXPECT_EQ(current->weights[1], nullptr);
  EXPECT_THAT(core_.HeldVersions(), ElementsAre(Version(0)));
}

}  // namespace
}  // namespace cohort
