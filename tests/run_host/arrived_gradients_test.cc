#include "server/run/arrived_gradients.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "server/core/coordinator.h"
#include "tests/fakes/statuses.h"
#include "tests/run_host/run_host_fakes.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A coordinator of one worker with two shards, and a model of two partitions
// with one element each. The worker computes step 0.
class ArrivedGradientsTest : public ::testing::Test {
 protected:
  ArrivedGradientsTest()
      : ArrivedGradientsTest(Options(),
                             {.parameters = {{.name = "a", .shape = {1}},
                                             {.name = "b", .shape = {1}}}}) {}
  ArrivedGradientsTest(const CoordinatorOptions& options, ModelLayout layout)
      : core_(options), layout_(std::move(layout)) {
    plan_.train_samples = 8;
    plan_.loss_reference = 1;
    Effects out;
    ExpectOk(core_.Join(SessionId(1), {.rank = Rank(0), .batch_size = 4}, Now(),
                        out));
    sender_ = {.run_id = "run",
               .rank = Rank(0),
               .incarnation = std::get<effect::Joined>(out[0]).incarnation};
    EXPECT_TRUE(core_.BeginRegister(sender_, layout_, plan_, Now(), out).ok());
    ExpectOk(core_.FinishRegister(sender_, layout_, plan_, {}, Now(), out));
    core_.CheckpointStored(Now(), out);
    for (const Effect& e : out) {
      if (const auto* told = std::get_if<effect::Notify>(&e)) {
        assignment_ = told->assignment;
      }
    }
  }

  static CoordinatorOptions Options() {
    CoordinatorOptions options = TinyRunHostOptions().coordinator;
    options.partition_bytes = sizeof(float);
    options.shards = 2;
    return options;
  }
  static Instant Now() { return absl::Seconds(1); }
  PushKey Key() const {
    return {.sequence = assignment_.sequence, .attempt = assignment_.attempt};
  }

  RemoteGradient Gradient(int32_t partition, int64_t ticket) const {
    return {
        .sender = sender_,
        .key = Key(),
        .gradient = {
            .partition = partition, .bytes = sizeof(float), .ticket = ticket}};
  }

  // The tickets that the coordinator takes, negative if it holds nothing new.
  std::vector<int64_t> Offer(Instant now = Now()) {
    Effects out;
    arrived_.Offer(Rank(0), core_, now, out, refused_);
    std::vector<int64_t> taken;
    for (const Effect& e : out) {
      if (const auto* one = std::get_if<command::Take>(&e)) {
        taken.push_back(one->held ? one->ticket : -one->ticket);
      }
    }
    return taken;
  }

  void Open() {
    Effects out;
    ExpectOk(core_.Open(sender_, Key(),
                        {.version = assignment_.version,
                         .samples = assignment_.range.size(),
                         .loss_weight = 4},
                        Now(), out));
  }

  // Makes a step, and returns the number of weights that its verdict announces.
  int32_t WeightsAnnounced(int64_t transaction) {
    Open();
    Effects out;
    for (int32_t shard : {0, 1}) {
      arrived_.Add(shard, Gradient(shard, 10 * transaction + shard), Now());
    }
    EXPECT_THAT(Offer(), SizeIs(2));
    for (int32_t partition : {0, 1}) {
      core_.Folded({.transaction = transaction,
                    .partition = partition,
                    .gradient_bytes = sizeof(float),
                    .prepared = true},
                   Now(), out);
    }
    ExpectOk(
        core_.Close(sender_, Key(), {.loss_sum = 1, .labels = 4}, Now(), out));
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
  ArrivedGradients arrived_{2};
  std::vector<ArrivedGradients::Refusal> refused_;
};

TEST_F(ArrivedGradientsTest, AGradientThatOvertakesItsOpeningWaitsForIt) {
  arrived_.Add(1, Gradient(1, 7), Now());
  EXPECT_THAT(Offer(), IsEmpty());
  Open();
  EXPECT_THAT(Offer(), ElementsAre(7));
  EXPECT_THAT(refused_, IsEmpty());
}

// What follows on a later stream of the same incarnation is answered.
TEST_F(ArrivedGradientsTest, AGradientThatIsNotOpenedHoldsUpNoOther) {
  arrived_.Add(1, Gradient(1, 7), Now());
  RemoteGradient unknown = Gradient(1, 8);
  unknown.key.sequence = Sequence(99);
  arrived_.Add(1, std::move(unknown), Now());
  EXPECT_THAT(Offer(), IsEmpty());
  ASSERT_THAT(refused_, SizeIs(1));
  EXPECT_EQ(refused_[0].ticket, 8);
  Open();
  EXPECT_THAT(Offer(), ElementsAre(7));
}

TEST_F(ArrivedGradientsTest, AGradientThatIsNeverOpenedIsRefusedInTheEnd) {
  arrived_.Add(1, Gradient(1, 7), Now());
  const Instant late = Now() + ArrivedGradients::kOpeningDeadline;
  EXPECT_THAT(arrived_.Overdue(late - absl::Seconds(1)), IsEmpty());
  EXPECT_THAT(arrived_.Overdue(late), ElementsAre(Rank(0)));
  EXPECT_THAT(Offer(late), IsEmpty());
  ASSERT_THAT(refused_, SizeIs(1));
  EXPECT_EQ(refused_[0].ticket, 7);
  EXPECT_TRUE(absl::IsDeadlineExceeded(refused_[0].status));
  EXPECT_THAT(arrived_.Overdue(late), IsEmpty());
}

TEST_F(ArrivedGradientsTest, ARepetitionIsTakenAndNotHeld) {
  Open();
  arrived_.Add(1, Gradient(1, 7), Now());
  arrived_.Add(1, Gradient(1, 8), Now());
  EXPECT_THAT(Offer(), ElementsAre(7, -8));
}

TEST_F(ArrivedGradientsTest, APartitionOfAnotherShardIsRefused) {
  Open();
  arrived_.Add(1, Gradient(0, 7), Now());
  EXPECT_THAT(Offer(), IsEmpty());
  ASSERT_THAT(refused_, SizeIs(1));
  EXPECT_EQ(refused_[0].ticket, 7);
  EXPECT_TRUE(absl::IsInvalidArgument(refused_[0].status));
}

// The data shards may not know the streams of its connection by then, so that
// it has to read the weights.
TEST_F(ArrivedGradientsTest, TheFirstVerdictAfterAJoinAnnouncesNoWeights) {
  EXPECT_EQ(WeightsAnnounced(1), 0);
  EXPECT_EQ(WeightsAnnounced(2), 2);
}

// Partitions 0 and 2, of 8 and 4 bytes, are shard 0's, and partition 1, of 8
// bytes, is the other shard's.
class RoomForArrivedGradientsTest : public ArrivedGradientsTest {
 protected:
  RoomForArrivedGradientsTest()
      : ArrivedGradientsTest(SmallOptions(),
                             {.parameters = {{.name = "a", .shape = {2}},
                                             {.name = "b", .shape = {3}}}}) {}

  static CoordinatorOptions SmallOptions() {
    CoordinatorOptions options = Options();
    options.partition_bytes = 2 * sizeof(float);
    options.inflight_bytes_max = 12;
    return options;
  }
  void Arrive(int32_t shard, int32_t partition, int64_t bytes) {
    RemoteGradient gradient = Gradient(partition, 10 + partition);
    gradient.gradient.bytes = bytes;
    arrived_.Add(shard, std::move(gradient), Now());
  }
};

// It is resumed once there is room, and what came after it waits too.
TEST_F(RoomForArrivedGradientsTest, APausedGradientDoesNotForgetThatItWaits) {
  Open();
  Arrive(0, 0, 8);
  Arrive(1, 1, 8);
  Arrive(0, 2, 4);
  EXPECT_THAT(Offer(), ElementsAre(10));
  // An effect says when there is room, however long that takes.
  EXPECT_THAT(arrived_.Overdue(Now() + absl::Hours(1)), IsEmpty());
  Effects out;
  core_.Folded(
      {.transaction = 1, .partition = 0, .gradient_bytes = 8, .prepared = true},
      Now(), out);
  EXPECT_TRUE(std::any_of(out.begin(), out.end(), [](const Effect& e) {
    return std::holds_alternative<effect::ResumeGradients>(e);
  }));
  EXPECT_THAT(Offer(), ElementsAre(11, 12));
}

// The stream that brings it opens its push first.
TEST_F(ArrivedGradientsTest, AGradientOfTheFirstShardWaitsForNoOpening) {
  arrived_.Add(0, Gradient(0, 7), Now());
  EXPECT_THAT(Offer(), IsEmpty());
  ASSERT_THAT(refused_, SizeIs(1));
  EXPECT_TRUE(absl::IsFailedPrecondition(refused_[0].status));
}

// What a killed server's workers send before they know is of no use to the
// next one.
TEST_F(ArrivedGradientsTest, AnIncarnationOfAnEarlierGenerationIsFenced) {
  Open();
  RemoteGradient old = Gradient(1, 7);
  old.sender.incarnation = Incarnation(sender_.incarnation.value() - 1);
  arrived_.Add(1, std::move(old), Now());
  EXPECT_THAT(Offer(), IsEmpty());
  ASSERT_THAT(refused_, SizeIs(1));
  EXPECT_TRUE(absl::IsAborted(refused_[0].status));
}

}  // namespace
}  // namespace cohort
