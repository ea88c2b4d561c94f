// Exceptions inside a shard, and the limits that keep them away.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/process/command_line.h"
#include "server/service/model_limits.h"
#include "server/service/pull_table.h"
#include "server/service/reserved_bytes.h"
#include "tests/integration/shard_fixture.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class NotedSession final : public SessionStream {
 public:
  explicit NotedSession(bool fails) : fails_(fails) {}
  void SendJoined(const effect::Joined&) override {
    if (fails_) throw std::bad_alloc();
    joined = true;
  }
  void SendAssignment(const Assignment&) override {}
  void SendStepAborted(const effect::StepAborted&) override {}
  void End(const absl::Status& status) override { ended = status; }

  bool joined = false;
  absl::Status ended;

 private:
  const bool fails_;
};

JoinRequest JoinAs(int32_t rank) {
  return {.rank = Rank(rank), .run_id = "run", .batch_size = 2};
}

TEST(ShardFaultTest, StreamThatCannotBeToldEndsAloneAndOthersAreServed) {
  SilentListener listener;
  const MovedClock clock;
  Shard shard(TinyShardOptions(/*workers=*/2), nullptr, clock, listener);
  shard.Start("here");
  const auto broken = std::make_shared<NotedSession>(true);
  const auto whole = std::make_shared<NotedSession>(false);
  ASSERT_TRUE(shard.Join(*shard.AdmitSession(broken), JoinAs(0)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(broken->ended));
  ASSERT_TRUE(shard.Join(*shard.AdmitSession(whole), JoinAs(1)).ok());
  EXPECT_TRUE(whole->joined);
}

// What cannot be told to a listener is told to nobody, in whatever effect.
class ThrowingListener final : public SilentListener {
 public:
  void OnLogged(const effect::Log&) override {
    throw std::length_error("too long");
  }
};

TEST(ShardFaultDeathTest, EffectThatFailsEndsTheProcessWithItsOwnCode) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  ThrowingListener listener;
  const MovedClock clock;
  EXPECT_EXIT(
      {
        Shard shard(TinyShardOptions(/*workers=*/2), nullptr, clock, listener);
        shard.Start("here");
        static_cast<void>(shard.Drain("a test"));
      },
      ::testing::ExitedWithCode(kExitHalfDone), "log.*too long");
}

BatchNormSpec Layer(const std::string& name, int64_t channels) {
  return {.name = name, .channels = channels};
}

ModelLayout Model(std::vector<BatchNormSpec> layers) {
  return {.parameters = {{.name = "w", .shape = {1 << 20}}},
          .batch_norms = std::move(layers)};
}

TEST(ModelLimitsTest, EveryNumberOfALayoutIsBounded) {
  ModelLayout many = Model({});
  for (int i = 0; i < 17; ++i) {
    many.batch_norms.push_back(Layer(absl::StrCat("bn", i), 1 << 20));
  }
  ModelLayout deep = Model({});
  deep.parameters[0].shape = std::vector<int64_t>(17, 1);
  ModelLayout named = Model({});
  named.parameters[0].name = std::string(1025, 'n');
  ModelLayout vast = Model({});
  vast.parameters[0].shape = {int64_t{1} << 33};
  for (const ModelLayout& layout :
       {Model({Layer("bn", (1 << 20) + 1)}),
        Model({Layer("bn", int64_t{1} << 62)}), many, deep, named, vast}) {
    EXPECT_TRUE(absl::IsInvalidArgument(CheckModelLimits(layout, {})));
  }
  EXPECT_TRUE(CheckModelLimits(Model({Layer("bn", 2048)}), {}).ok());
}

// 4 MiB of weights and twice as much of slots, in two versions: 24 MiB.
TEST(ModelLimitsTest, ModelMustFitIntoMemoryWithItsSlots) {
  constexpr int64_t kMib = 1 << 20;
  const ModelLayout layout = Model({});
  EXPECT_TRUE(
      CheckModelLimits(layout, {.slots = 2, .memory_bytes = 24 * kMib}).ok());
  const absl::Status status =
      CheckModelLimits(layout, {.slots = 2, .memory_bytes = 24 * kMib - 1});
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("24 MiB"));
}

class PullTableTest : public ::testing::Test {
 protected:
  std::shared_ptr<Stream> Admitted(const std::string& peer, int64_t version) {
    auto stream = std::make_shared<NotedSession>(false);
    last_ = table_.Admit(stream, peer, Version(version), now_, evicted_);
    return stream;
  }

  PullTable table_{{.pulls = 3, .pulls_per_peer = 2, .versions = 2}};
  Instant now_ = absl::Seconds(1);
  StreamRegistry::Streams evicted_;
  absl::Status last_;
};

TEST_F(PullTableTest, StalledVersionMakesRoomForANewOne) {
  const auto old = Admitted("a", 1);
  const auto read = Admitted("b", 2);
  Admitted("c", 3);
  EXPECT_TRUE(absl::IsResourceExhausted(last_));
  now_ += absl::Seconds(2);
  table_.Progressed(read.get(), now_);
  Admitted("c", 3);
  EXPECT_TRUE(last_.ok());
  EXPECT_THAT(evicted_, ElementsAre(old));
}

TEST_F(PullTableTest, PeerHasItsShareAndAllHaveALimit) {
  const auto first = Admitted("a", 1);
  Admitted("a", 1);
  Admitted("a", 1);
  EXPECT_TRUE(absl::IsResourceExhausted(last_));
  Admitted("b", 1);
  EXPECT_TRUE(last_.ok());
  Admitted("c", 1);
  EXPECT_TRUE(absl::IsResourceExhausted(last_));
  EXPECT_THAT(evicted_, IsEmpty());
  table_.Forget(first.get());
  Admitted("c", 1);
  EXPECT_TRUE(last_.ok());
}

TEST(ReservedBytesTest, AreGivenBackAndTheFirstPasses) {
  ReservedBytes bytes(10);
  absl::StatusOr<ReservedBytes::Reservation> first = bytes.Take("values", 12);
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE(absl::IsResourceExhausted(bytes.Take("values", 1).status()));
  first->reset();
  const auto second = bytes.Take("values", 6);
  EXPECT_TRUE(bytes.Take("values", 4).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(bytes.Take("values", 5).status()));
}

}  // namespace
}  // namespace cohort
