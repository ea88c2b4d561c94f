#include "worker/client/retrying_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/fakes/statuses.h"
#include "worker/client/client_hooks.h"
#include "worker/client/link.h"

namespace cohort {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::IsEmpty;
using ::testing::Le;

const absl::Status kAway = absl::UnavailableError("host:1: away");

class HandClock final : public Clock {
 public:
  Instant Now() const override { return now; }
  Instant now = absl::Hours(1);
};

// Records the pauses and returns at once.
class RecordedSleeper final : public Sleeper {
 public:
  explicit RecordedSleeper(HandClock& clock) : clock_(clock) {}

  absl::Status Pause(absl::Duration pause) override {
    if (stopped) return absl::CancelledError("a stop was requested");
    waits.push_back(pause);
    clock_.now += pause;
    return absl::OkStatus();
  }

  std::vector<absl::Duration> waits;
  bool stopped = false;

 private:
  HandClock& clock_;
};

// Returns the results that a test has queued for each call, in order, and OK
// once the queue is empty.
class ScriptedClient final : public Client {
 public:
  absl::StatusOr<Membership> Join() override {
    return Next("Join", Membership{.rank = Rank(2)});
  }
  absl::StatusOr<Registration> Register(
      const ModelLayout& /*layout*/, const RunPlan& /*plan*/,
      absl::Span<const absl::Span<const float>> /*values*/,
      absl::Span<const LayerStatistics> /*statistics*/) override {
    if (on_register) on_register();
    return Next("Register", Registration());
  }
  Incarnation incarnation() const override { return Incarnation(); }
  absl::StatusOr<Assignment> NextAssignment() override {
    return Next("NextAssignment", Assignment());
  }
  absl::StatusOr<PulledVersion> Pull(const PullOptions& /*options*/) override {
    return Next("Pull", PulledVersion());
  }
  absl::StatusOr<std::vector<Moments>> Reduce(
      const ReducePass& /*pass*/,
      absl::Span<const Contribution> /*local*/) override {
    return Next("Reduce", std::vector<Moments>());
  }
  absl::Status OpenPush(const PushOpening& /*opening*/) override {
    return Next("OpenPush");
  }
  absl::Status SendGradient(int32_t /*partition*/, ByteRope /*gradient*/,
                            absl::Span<const int32_t> /*absent*/) override {
    return Next("SendGradient");
  }
  absl::StatusOr<std::vector<ByteRope>> AwaitUpdate() override {
    return Next("AwaitUpdate", std::vector<ByteRope>());
  }
  absl::StatusOr<PushResult> ClosePush(
      const PushClosing& /*closing*/) override {
    return Next("ClosePush", PushResult());
  }
  absl::StatusOr<PushVerdict> RepeatClosing(
      const PushKey& /*key*/, const PushClosing& /*closing*/) override {
    return Next("RepeatClosing", PushVerdict());
  }
  absl::StatusOr<bool> HoldState(const StateHolding& /*holding*/) override {
    return Next("HoldState", false);
  }
  absl::Status GiveState(Version /*version*/,
                         absl::string_view /*bytes*/) override {
    return Next("GiveState");
  }
  absl::StatusOr<TakenState> TakeState() override {
    return Next("TakeState", TakenState());
  }
  absl::Status ReportEvaluation(const EvaluationSums& /*sums*/) override {
    return Next("ReportEvaluation");
  }
  absl::Status ReportMoments(absl::Span<const CallMoments> /*calls*/) override {
    return Next("ReportMoments");
  }
  void Leave(const Departure& /*departure*/) override {}
  void RequestStop() override {}
  void SetObserver(std::function<void(const std::string&)> observer) override {
    tell = std::move(observer);
  }

  // Results by method.
  std::map<std::string, std::deque<absl::Status>> script;
  std::vector<std::string> calls;
  std::function<void(const std::string&)> tell;
  std::function<void()> on_register;

 private:
  absl::Status Next(const std::string& method) {
    calls.push_back(method);
    std::deque<absl::Status>& line = script[method];
    if (line.empty()) return absl::OkStatus();
    absl::Status status = line.front();
    line.pop_front();
    return status;
  }
  template <typename T>
  absl::StatusOr<T> Next(const std::string& method, T value) {
    const absl::Status status = Next(method);
    if (!status.ok()) return status;
    return value;
  }
};

class RetriesHeard final : public ClientHooks {
 public:
  void OnJoined(const Membership& /*m*/, bool /*again*/) override {}
  void OnRetry(absl::string_view method) override {
    methods.emplace_back(method);
  }
  void OnObstacle(const std::string& text) override {
    obstacles.push_back(text);
  }
  WorkerReport TakeReport() override { return {}; }
  bool WantsServerClock() const override { return false; }
  void OnServerClock(absl::Duration /*o*/, absl::Duration /*e*/) override {}
  void OnExchangePath(absl::string_view /*transport*/,
                      absl::string_view /*text*/) override {}
  void OnTlsFiles(bool /*fault*/, absl::string_view /*text*/) override {}

  std::vector<std::string> methods;
  std::vector<std::string> obstacles;
};

class RetryingClientTest : public ::testing::Test {
 protected:
  RetryingClientTest() {
    auto scripted = std::make_unique<ScriptedClient>();
    once_ = scripted.get();
    client_ = std::make_unique<RetryingClient>(
        std::move(scripted),
        ClientOptions{
            .server = "host:1", .server_timeout = kPatience, .hooks = &hooks_},
        clock_, sleeper_);
    client_->SetObserver(
        [this](const std::string& sentence) { told_.push_back(sentence); });
  }

  void Script(const std::string& method, std::deque<absl::Status> statuses) {
    once_->script[method] = std::move(statuses);
  }
  // Joins, and clears the recorded calls.
  void Joined() {
    ASSERT_TRUE(client_->Join().ok());
    once_->calls.clear();
  }
  absl::Status Register() { return client_->Register({}, {}, {}, {}).status(); }

  static constexpr absl::Duration kPatience = absl::Seconds(30);

  HandClock clock_;
  RecordedSleeper sleeper_{clock_};
  RetriesHeard hooks_;
  std::vector<std::string> told_;
  ScriptedClient* once_ = nullptr;
  std::unique_ptr<RetryingClient> client_;
};

// A pause that is shortened at random by at most a half.
auto UpTo(int64_t ms) {
  return AllOf(Ge(absl::Milliseconds(ms) / 2), Le(absl::Milliseconds(ms)));
}

TEST_F(RetryingClientTest, JoinIsRepeatedAfterGrowingPauses) {
  Script("Join", std::deque<absl::Status>(8, kAway));
  EXPECT_EQ(client_->Join()->rank, Rank(2));
  EXPECT_THAT(sleeper_.waits,
              ElementsAre(UpTo(50), UpTo(100), UpTo(200), UpTo(400), UpTo(800),
                          UpTo(1600), UpTo(2000), UpTo(2000)));
  EXPECT_EQ(once_->calls.size(), 9u);
  EXPECT_EQ(hooks_.methods, std::vector<std::string>(8, "Session"));
  // Reported once, since the text stays the same.
  EXPECT_THAT(told_, ElementsAre("waiting to join: host:1: away",
                                 "joined as rank 2, at step 0"));
}

TEST_F(RetryingClientTest, JoinGivesUpWhenPatienceEnds) {
  Script("Join", std::deque<absl::Status>(100, kAway));
  const Instant begin = clock_.now;
  EXPECT_THAT(client_->Join(),
              IsError(kDeadlineExceeded, "host:1 within 30s: away"));
  // The last pause is shortened, and no try follows it.
  EXPECT_EQ(clock_.now - begin, kPatience);
  EXPECT_EQ(once_->calls.size(), sleeper_.waits.size());
}

TEST_F(RetryingClientTest, AnObstacleIsReportedAgainAndAgain) {
  RecordedSleeper sleeper{clock_};
  auto scripted = std::make_unique<ScriptedClient>();
  scripted->script["Join"] = std::deque<absl::Status>(1000, AsObstacle(kAway));
  RetryingClient client(std::move(scripted),
                        {.server = "host:1",
                         .server_timeout = absl::Seconds(65),
                         .hooks = &hooks_},
                        clock_, sleeper);
  EXPECT_TRUE(absl::IsDeadlineExceeded(client.Join().status()));
  // After 0, 30 and 60 s.
  EXPECT_EQ(hooks_.obstacles,
            std::vector<std::string>(
                3,
                "host:1: away; this worker tries again until --server_timeout "
                "(1m5s)"));
}

TEST_F(RetryingClientTest, ARefusalOfTheJoinIsFinal) {
  Script("Join", {absl::FailedPreconditionError("another run")});
  EXPECT_EQ(client_->Join().status(),
            absl::FailedPreconditionError("another run"));
  EXPECT_THAT(once_->calls, ElementsAre("Join"));
  EXPECT_THAT(sleeper_.waits, IsEmpty());
}

TEST_F(RetryingClientTest, ASecondJoinIsRefused) {
  Joined();
  EXPECT_THAT(client_->Join(), IsError(kFailedPrecondition, "twice"));
  EXPECT_THAT(once_->calls, IsEmpty());
}

TEST_F(RetryingClientTest, AStopEndsAPause) {
  Script("Join", {kAway});
  sleeper_.stopped = true;
  EXPECT_TRUE(absl::IsCancelled(client_->Join().status()));
  EXPECT_THAT(once_->calls, ElementsAre("Join"));
}

TEST_F(RetryingClientTest, ALostConnectionIsBuiltAnewForTheNextAssignment) {
  Joined();
  Script("NextAssignment", {kAway});
  Script("Join", {kAway});
  EXPECT_TRUE(client_->NextAssignment().ok());
  EXPECT_THAT(once_->calls,
              ElementsAre("NextAssignment", "Join", "Join", "NextAssignment"));
  EXPECT_THAT(sleeper_.waits, ElementsAre(UpTo(50)));
  EXPECT_THAT(told_, ElementsAre("reconnecting: host:1: away",
                                 "waiting to join: host:1: away",
                                 "joined as rank 2, at step 0"));
}

TEST_F(RetryingClientTest, AnEndedIncarnationIsFollowedByANewOneWithoutAPause) {
  Joined();
  Script("NextAssignment", {absl::AbortedError("fenced")});
  Script("Join", {absl::AbortedError("a newer process has joined")});
  EXPECT_TRUE(client_->NextAssignment().ok());
  EXPECT_THAT(once_->calls,
              ElementsAre("NextAssignment", "Join", "Join", "NextAssignment"));
  EXPECT_THAT(sleeper_.waits, IsEmpty());
  EXPECT_THAT(hooks_.methods, ElementsAre("Session"));
}

// If the server refuses the new incarnation too, the next try waits.
TEST_F(RetryingClientTest,
       ANewIncarnationThatIsRefusedIsTriedAgainAfterAPause) {
  Joined();
  Script("NextAssignment", {kAway});
  Script("Join", {absl::AbortedError("over"), absl::AbortedError("over")});
  EXPECT_TRUE(client_->NextAssignment().ok());
  EXPECT_THAT(sleeper_.waits, ElementsAre(UpTo(50)));
}

TEST_F(RetryingClientTest, RegisteringIsRepeatedAfterJoiningAgain) {
  Joined();
  Script("Register", {kAway, absl::AbortedError("restarted")});
  EXPECT_TRUE(Register().ok());
  EXPECT_THAT(once_->calls,
              ElementsAre("Register", "Join", "Register", "Join", "Register"));
  EXPECT_THAT(sleeper_.waits, ElementsAre(UpTo(50), UpTo(100)));
  EXPECT_THAT(hooks_.methods, ElementsAre("Register", "Register"));
}

TEST_F(RetryingClientTest, RegisteringIsGivenUpWhenPatienceEnds) {
  Joined();
  Script("Register", std::deque<absl::Status>(100, kAway));
  once_->on_register = [this] { clock_.now += absl::Seconds(16); };
  EXPECT_EQ(Register(), kAway);
  EXPECT_THAT(once_->calls, ElementsAre("Register", "Join", "Register"));
}

// The server is there and waits for other workers, for longer than the client
// waits for a server that is away.
TEST_F(RetryingClientTest, AToldWaitRenewsThePatienceOfRegistering) {
  Joined();
  Script("Register", std::deque<absl::Status>(3, kAway));
  once_->on_register = [this] {
    once_->tell("waiting for worker 1");
    clock_.now += absl::Hours(1);
  };
  EXPECT_TRUE(Register().ok());
  EXPECT_EQ(told_.front(), "waiting for worker 1");
}

TEST_F(RetryingClientTest, ADamagedPullIsReadFiveTimesAtMost) {
  Joined();
  Script("Pull", std::deque<absl::Status>(100, absl::DataLossError("damaged")));
  EXPECT_EQ(client_->Pull({}).status(), absl::DataLossError("damaged"));
  EXPECT_EQ(once_->calls, std::vector<std::string>(5, "Pull"));
  EXPECT_THAT(sleeper_.waits,
              ElementsAre(UpTo(50), UpTo(100), UpTo(200), UpTo(400)));
  EXPECT_EQ(hooks_.methods, std::vector<std::string>(4, "Pull"));
}

// As Link reports the end of a stream with DATA_LOSS.
absl::Status Damaged() {
  HandClock clock;
  return Link("host:1", clock)
      .NormalizedEnd("the exchange", absl::DataLossError("wrong checksum"));
}

TEST_F(RetryingClientTest, DamageInTenConnectionsInARowIsReported) {
  Joined();
  Script("NextAssignment", std::deque<absl::Status>(100, Damaged()));
  EXPECT_THAT(client_->NextAssignment(),
              IsError(kDataLoss, "10th connection in a row"));
  EXPECT_EQ(once_->calls.size(), 10u + 9u);
  EXPECT_THAT(sleeper_.waits,
              ElementsAre(UpTo(50), UpTo(100), UpTo(200), UpTo(400), UpTo(800),
                          UpTo(1600), UpTo(2000), UpTo(2000)));
}

TEST_F(RetryingClientTest, ACompletedAssignmentEndsARowOfDamages) {
  Joined();
  for (int i = 0; i < 4; ++i) {
    Script("NextAssignment", std::deque<absl::Status>(9, Damaged()));
    ASSERT_TRUE(client_->NextAssignment().ok());
    switch (i) {
      case 0:
        ASSERT_TRUE(client_->ClosePush({}).ok());
        break;
      case 1:
        ASSERT_TRUE(client_->ReportEvaluation({}).ok());
        break;
      default:
        ASSERT_TRUE(client_->ReportMoments({}).ok());
    }
  }
  // An assignment that was given, but not completed, does not.
  Script("NextAssignment", std::deque<absl::Status>(9, Damaged()));
  ASSERT_TRUE(client_->NextAssignment().ok());
  Script("NextAssignment", {Damaged()});
  EXPECT_TRUE(absl::IsDataLoss(client_->NextAssignment().status()));
}

// A lost connection is no sign of damage. A peer that is lost repeatedly,
// though it can be joined, must not keep the processor busy.
TEST_F(RetryingClientTest, OtherLostConnectionsAreFollowedByGrowingPauses) {
  Joined();
  Script("NextAssignment", std::deque<absl::Status>(100, kAway));
  EXPECT_TRUE(client_->NextAssignment().ok());
  ASSERT_EQ(sleeper_.waits.size(), 99u);
  EXPECT_THAT(sleeper_.waits[0], UpTo(50));
  EXPECT_THAT(sleeper_.waits[98], UpTo(2000));
  // Something was completed in between.
  ASSERT_TRUE(client_->ClosePush({}).ok());
  Script("NextAssignment", {kAway});
  EXPECT_TRUE(client_->NextAssignment().ok());
  EXPECT_EQ(sleeper_.waits.size(), 99u);
}

TEST_F(RetryingClientTest, APullThatLosesTheConnectionIsTriedOnce) {
  Joined();
  Script("Pull", {kAway});
  EXPECT_EQ(client_->Pull({}).status(), kAway);
  EXPECT_THAT(once_->calls, ElementsAre("Pull"));
}

TEST_F(RetryingClientTest, CallsOfAnAssignmentAreTriedOnce) {
  Joined();
  for (const char* method : {"Reduce", "OpenPush", "SendGradient", "ClosePush",
                             "ReportEvaluation", "ReportMoments"}) {
    Script(method, {kAway});
  }
  EXPECT_EQ(client_->Reduce({}, {}).status(), kAway);
  EXPECT_EQ(client_->OpenPush({}), kAway);
  EXPECT_EQ(client_->SendGradient(0, {}, {}), kAway);
  EXPECT_EQ(client_->ClosePush({}).status(), kAway);
  EXPECT_EQ(client_->ReportEvaluation({}), kAway);
  EXPECT_EQ(client_->ReportMoments({}), kAway);
  EXPECT_THAT(once_->calls,
              ElementsAre("Reduce", "OpenPush", "SendGradient", "ClosePush",
                          "ReportEvaluation", "ReportMoments"));
  EXPECT_THAT(sleeper_.waits, IsEmpty());
  EXPECT_THAT(hooks_.methods, IsEmpty());
}

}  // namespace
}  // namespace cohort
