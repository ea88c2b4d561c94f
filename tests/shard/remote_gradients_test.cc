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
  RemoteGradientsTest() : core_(Options()) {
    layout_ = {.parameters = {{.name = "a", .shape = {1}},
                              {.name = "b", .shape = {1}}}};
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
                    .FinishRegister(sender_, layout_, plan_, {One(), One()}, {},
                                    Now(), out)
                    .ok());
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
  static SharedFloats One() {
    auto buffer = std::make_shared<FloatBuffer>(1);
    *buffer->data() = 1;
    return buffer;
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
  std::vector<int64_t> Offer() {
    Effects out;
    remote_.Offer(Rank(0), core_, Now(), out, refused_);
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
    ASSERT_TRUE(
        core_
            .Open(sender_, Key(),
                  {.samples = assignment_.range.size(), .loss_weight = 4},
                  Now(), out)
            .ok());
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
  remote_.Add(1, Gradient(1, 7));
  EXPECT_THAT(Offer(), IsEmpty());
  Open();
  EXPECT_THAT(Offer(), ElementsAre(7));
  EXPECT_THAT(refused_, IsEmpty());
}

TEST_F(RemoteGradientsTest, ARepetitionIsTakenAndNotHeld) {
  Open();
  remote_.Add(1, Gradient(1, 7));
  remote_.Add(1, Gradient(1, 8));
  EXPECT_THAT(Offer(), ElementsAre(7, -8));
}

TEST_F(RemoteGradientsTest, APartitionOfAnotherShardIsRefused) {
  Open();
  remote_.Add(1, Gradient(0, 7));
  EXPECT_THAT(Offer(), IsEmpty());
  ASSERT_THAT(refused_, SizeIs(1));
  EXPECT_EQ(refused_[0].ticket, 7);
  EXPECT_TRUE(absl::IsInvalidArgument(refused_[0].status));
}

// What a killed server's workers send before they know is of no use to the
// next one.
TEST_F(RemoteGradientsTest, AnIncarnationOfAnEarlierGenerationIsFenced) {
  Open();
  RemoteGradient old = Gradient(1, 7);
  old.sender.incarnation = Incarnation(sender_.incarnation.value() - 1);
  remote_.Add(1, std::move(old));
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
