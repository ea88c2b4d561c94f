#include "server/streams/stream_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "absl/status/status.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class FakeExchange final : public ExchangeStream {
 public:
  void Resume() override {}
  void SendWeights(const WeightsMessage&) override {}
  void SendVerdict(const effect::SendVerdict&) override {}
  void End(const absl::Status&) override {}
};

class FakeSession final : public SessionStream {
 public:
  void SendJoined(const effect::Joined&) override {}
  void SendAssignment(const Assignment&) override {}
  void SendStepAborted(const effect::StepAborted&) override {}
  void End(const absl::Status&) override {}
};

constexpr Rank kRank{3};
constexpr Incarnation kIncarnation{7};

std::shared_ptr<FakeExchange> Admitted(StreamRegistry& registry) {
  auto stream = std::make_shared<FakeExchange>();
  EXPECT_TRUE(registry.Admit(stream).ok());
  return stream;
}

TEST(StreamRegistryTest, NewerStreamTakesThePlaceAndTheOlderCannotTakeItBack) {
  StreamRegistry registry({});
  const auto older = Admitted(registry);
  const auto newer = Admitted(registry);
  EXPECT_EQ(registry.Put<ExchangeStream>(kRank, kIncarnation, older), nullptr);
  EXPECT_EQ(registry.Put<ExchangeStream>(kRank, kIncarnation, newer), older);
  EXPECT_EQ(registry.Put<ExchangeStream>(kRank, kIncarnation, newer), nullptr);
  EXPECT_EQ(registry.Put<ExchangeStream>(kRank, kIncarnation, older), older);
  EXPECT_EQ(registry.Find<ExchangeStream>(kRank, kIncarnation), newer);
}

TEST(StreamRegistryTest, EffectsReachOnlyTheIncarnationTheyAreFor) {
  StreamRegistry registry({});
  const auto stream = Admitted(registry);
  registry.Put<ExchangeStream>(kRank, kIncarnation, stream);
  EXPECT_EQ(registry.Find<ExchangeStream>(kRank, Incarnation(6)), nullptr);
  EXPECT_EQ(registry.Find<ExchangeStream>(Rank(2), kIncarnation), nullptr);
  registry.Forget(stream.get());
  EXPECT_EQ(registry.Find<ExchangeStream>(kRank, kIncarnation), nullptr);
}

TEST(StreamRegistryTest, NewerIncarnationEndsTheStreamsOfOlderOnes) {
  StreamRegistry registry({});
  const auto stream = Admitted(registry);
  registry.Put<ExchangeStream>(kRank, kIncarnation, stream);
  EXPECT_THAT(registry.Bind(SessionId(1), kRank, kIncarnation), IsEmpty());
  const StreamRegistry::Streams ended =
      registry.Bind(SessionId(2), kRank, kIncarnation.Next());
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0], stream);
}

// The first session of a reconnected worker ends after the second has begun.
TEST(StreamRegistryTest, EndOfAReplacedSessionLeavesTheIncarnationAlone) {
  StreamRegistry registry({});
  const auto stream = Admitted(registry);
  registry.Put<ExchangeStream>(kRank, kIncarnation, stream);
  registry.Bind(SessionId(1), kRank, kIncarnation);
  registry.Bind(SessionId(2), kRank, kIncarnation);
  EXPECT_THAT(registry.Unbind(SessionId(1)), IsEmpty());
  EXPECT_EQ(registry.Unbind(SessionId(2)).size(), 1u);
}

TEST(StreamRegistryTest, HoldsItsLimits) {
  StreamRegistry registry({.sessions = 1, .streams = 2});
  const auto session = std::make_shared<FakeSession>();
  ASSERT_TRUE(registry.AdmitSession(session, Instant()).ok());
  EXPECT_THAT(registry.AdmitSession(std::make_shared<FakeSession>(), Instant()),
              IsError(kResourceExhausted, ""));
  Admitted(registry);
  EXPECT_TRUE(absl::IsResourceExhausted(
      registry.Admit(std::make_shared<FakeExchange>())));
  registry.Forget(session.get());
  ExpectOk(registry.AdmitSession(std::make_shared<FakeSession>(), Instant()));
}

TEST(StreamRegistryTest, SessionThatDoesNotJoinIsTakenOnceItsTimeIsUp) {
  StreamRegistry registry({});
  const auto silent = std::make_shared<FakeSession>();
  const auto joined = std::make_shared<FakeSession>();
  const Instant start;
  const absl::Duration patience = absl::Seconds(10);
  const SessionId silent_id = *registry.AdmitSession(silent, start + patience);
  const SessionId joined_id = *registry.AdmitSession(joined, start + patience);
  registry.Bind(joined_id, kRank, kIncarnation);
  EXPECT_THAT(registry.TakeSilent(start + patience - absl::Milliseconds(1)),
              IsEmpty());
  EXPECT_THAT(registry.TakeSilent(start + patience), ElementsAre(silent));
  EXPECT_THAT(registry.TakeSilent(start + 2 * patience), IsEmpty());
  EXPECT_EQ(registry.Session(silent_id), nullptr);
  EXPECT_EQ(registry.Session(joined_id), joined);
}

TEST(StreamRegistryTest, SilentSessionGivesItsPlaceToANewcomer) {
  StreamRegistry registry({.sessions = 2, .streams = 8});
  const auto joined = std::make_shared<FakeSession>();
  const auto silent = std::make_shared<FakeSession>();
  const auto newcomer = std::make_shared<FakeSession>();
  StreamRegistry::Streams evicted;
  const SessionId joined_id = *registry.AdmitSession(joined, Instant());
  registry.Bind(joined_id, kRank, kIncarnation);
  ASSERT_TRUE(registry.AdmitSession(silent, Instant()).ok());
  ASSERT_TRUE(registry.AdmitSession(newcomer, Instant(), &evicted).ok());
  EXPECT_THAT(evicted, ElementsAre(silent));
  EXPECT_EQ(registry.sessions(), 2);
  EXPECT_EQ(registry.Session(joined_id), joined);
  registry.Forget(silent.get());
  EXPECT_EQ(registry.sessions(), 2);
}

TEST(StreamRegistryTest, StreamThatLostItsPlaceGetsNoEffects) {
  StreamRegistry registry({.sessions = 1, .streams = 1});
  const auto silent = std::make_shared<FakeExchange>();
  const auto newcomer = std::make_shared<FakeExchange>();
  StreamRegistry::Streams evicted;
  const Instant patience = absl::Seconds(15);
  ASSERT_TRUE(registry.Admit(silent, patience).ok());
  ASSERT_TRUE(registry.Admit(newcomer, patience, &evicted).ok());
  EXPECT_THAT(evicted, ElementsAre(silent));
  EXPECT_EQ(registry.Put<ExchangeStream>(kRank, kIncarnation, silent), silent);
  registry.Spoke(newcomer.get());
  EXPECT_TRUE(absl::IsResourceExhausted(
      registry.Admit(std::make_shared<FakeExchange>(), patience, &evicted)));
  EXPECT_THAT(registry.TakeSilent(patience), IsEmpty());
}

TEST(StreamRegistryTest, CloseReturnsAllAndRefusesMore) {
  StreamRegistry registry({});
  const auto stream = Admitted(registry);
  EXPECT_EQ(registry.Close().size(), 1u);
  EXPECT_TRUE(
      absl::IsUnavailable(registry.Admit(std::make_shared<FakeExchange>())));
}

}  // namespace
}  // namespace cohort
