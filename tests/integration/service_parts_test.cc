// The parts of the service that need no connection.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/formats/csv.h"
#include "common/process/command_line.h"
#include "server/core/settings.h"
#include "server/service/byte_meter.h"
#include "server/service/history_course.h"
#include "server/service/history_table.h"
#include "server/service/progress_text.h"
#include "server/service/run_recorder.h"
#include "server/service/stream_registry.h"
#include "server/service/watchers.h"
#include "tests/fakes/temp_dir.h"

ABSL_FLAG(int32_t, parts_count, 2, "A number.");
ABSL_FLAG(bool, parts_switch, false, "A switch.");

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

class FakeExchange final : public ExchangeStream {
 public:
  void Resume(const effect::ResumeGradients&) override {}
  void SendWeights(const effect::SendWeights&) override {}
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
constexpr Incarnation kLife{7};

std::shared_ptr<FakeExchange> Admitted(StreamRegistry& registry) {
  auto stream = std::make_shared<FakeExchange>();
  EXPECT_TRUE(registry.Admit(stream).ok());
  return stream;
}

TEST(StreamRegistryTest, NewerStreamTakesThePlaceAndTheOlderCannotTakeItBack) {
  StreamRegistry registry({});
  const auto older = Admitted(registry);
  const auto newer = Admitted(registry);
  EXPECT_EQ(registry.PutExchange(kRank, kLife, older), nullptr);
  EXPECT_EQ(registry.PutExchange(kRank, kLife, newer), older);
  EXPECT_EQ(registry.PutExchange(kRank, kLife, newer), nullptr);
  EXPECT_EQ(registry.PutExchange(kRank, kLife, older), older);
  EXPECT_EQ(registry.Exchange(kRank, kLife), newer);
}

TEST(StreamRegistryTest, EffectsReachOnlyTheLifeTheyAreFor) {
  StreamRegistry registry({});
  const auto stream = Admitted(registry);
  registry.PutExchange(kRank, kLife, stream);
  EXPECT_EQ(registry.Exchange(kRank, Incarnation(6)), nullptr);
  EXPECT_EQ(registry.Exchange(Rank(2), kLife), nullptr);
  registry.Forget(stream.get());
  EXPECT_EQ(registry.Exchange(kRank, kLife), nullptr);
}

TEST(StreamRegistryTest, NewerLifeEndsTheStreamsOfOlderOnes) {
  StreamRegistry registry({});
  const auto stream = Admitted(registry);
  registry.PutExchange(kRank, kLife, stream);
  EXPECT_THAT(registry.Bind(SessionId(1), kRank, kLife), IsEmpty());
  const StreamRegistry::Streams ended =
      registry.Bind(SessionId(2), kRank, kLife.Next());
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0], stream);
}

// A reconnected worker's first session ends after the second has begun.
TEST(StreamRegistryTest, EndOfAReplacedSessionLeavesTheLifeAlone) {
  StreamRegistry registry({});
  const auto stream = Admitted(registry);
  registry.PutExchange(kRank, kLife, stream);
  registry.Bind(SessionId(1), kRank, kLife);
  registry.Bind(SessionId(2), kRank, kLife);
  EXPECT_THAT(registry.Unbind(SessionId(1)), IsEmpty());
  EXPECT_EQ(registry.Unbind(SessionId(2)).size(), 1u);
}

TEST(StreamRegistryTest, HoldsItsLimits) {
  StreamRegistry registry({.sessions = 1, .streams = 2});
  const auto session = std::make_shared<FakeSession>();
  ASSERT_TRUE(registry.AdmitSession(session, Instant()).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(
      registry.AdmitSession(std::make_shared<FakeSession>(), Instant())
          .status()));
  Admitted(registry);
  EXPECT_TRUE(absl::IsResourceExhausted(
      registry.Admit(std::make_shared<FakeExchange>())));
  registry.Forget(session.get());
  EXPECT_TRUE(
      registry.AdmitSession(std::make_shared<FakeSession>(), Instant()).ok());
}

TEST(StreamRegistryTest, SessionThatDoesNotJoinIsTakenOnceItsTimeIsUp) {
  StreamRegistry registry({});
  const auto silent = std::make_shared<FakeSession>();
  const auto joined = std::make_shared<FakeSession>();
  const Instant start;
  const absl::Duration patience = absl::Seconds(10);
  const SessionId silent_id = *registry.AdmitSession(silent, start + patience);
  const SessionId joined_id = *registry.AdmitSession(joined, start + patience);
  registry.Bind(joined_id, kRank, kLife);
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
  registry.Bind(joined_id, kRank, kLife);
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
  EXPECT_EQ(registry.PutExchange(kRank, kLife, silent), silent);
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

TEST(ByteMeterTest, BytesCountUntilTheLastPieceIsGone) {
  ByteMeter meter;
  const std::vector<std::byte> bytes(6);
  ByteRope rope = meter.Count(ByteRope::Copy(bytes));
  ByteRope copy = rope;
  rope = ByteRope();
  EXPECT_EQ(meter.held_bytes(), 6);
  copy = ByteRope();
  EXPECT_EQ(meter.held_bytes(), 0);
}

StatusView Training() {
  return {.state = "training, 2 of 2 workers",
          .phase = StatusView::Phase::kTraining,
          .version = Version(30),
          .data_epoch = 1,
          .epochs = 4,
          .samples = 150,
          .samples_total = 400,
          .policy = "sync",
          .train_loss = 0.5,
          .workers_live = 2,
          .workers_expected = 2};
}

TEST(ProgressTextTest, TellsStepEpochSpeedAndTimeLeft) {
  // 50 of the second 100; 250 left at 10 a second.
  EXPECT_EQ(
      ProgressText(Training(), 10),
      "step 30, epoch 2 of 4, 50 % of it, loss 0.5000, 10 images/s, ETA 25 s, "
      "workers 2/2, sync");
}

TEST(ProgressTextTest, TellsTheNewestTestMeasure) {
  StatusView status = Training();
  status.test = EvaluationSums{.correct = 3, .labels = 4};
  EXPECT_THAT(ProgressText(status, 10),
              EndsWith("ETA 25 s, test accuracy 75.0 %, workers 2/2, sync"));
  status.test->classes = {{.intersection = 3, .predicted = 4, .actual = 3},
                          {.intersection = 0, .predicted = 0, .actual = 1}};
  EXPECT_THAT(ProgressText(status, 10),
              EndsWith("ETA 25 s, test mIoU 37.5 %, workers 2/2, sync"));
}

TEST(ProgressTextTest, WaitingIsToldInTheServersOwnWords) {
  StatusView status = Training();
  status.state = "waiting for a replacement of worker 1, gives up in 9 s";
  EXPECT_EQ(ProgressText(status, 10), status.state);
}

TEST(ProgressTextTest, ShorterLineBlanksTheRest) {
  std::ostringstream out;
  ProgressLine line;
  line.Show(out, "abcdef", 80);
  line.Show(out, "xy", 80);
  line.Show(out, "123456", 4);
  line.Clear(out);
  EXPECT_EQ(out.str(), "\rabcdef\rxy    \r123\r   \r");
}

TEST(ProgressTextTest, RateIsThatOfTheLastTenSeconds) {
  RateMeter rate;
  StatusView status = Training();
  const auto add = [&rate, &status](int64_t second, int64_t samples) {
    status.samples = samples;
    rate.Add(absl::Seconds(second), status);
  };
  EXPECT_EQ(rate.per_second(), 0);
  add(0, 0);
  add(20, 1000);
  add(25, 1010);
  EXPECT_EQ(rate.per_second(), 2);
  // One who is slow makes it slow.
  status.phase = StatusView::Phase::kWaiting;
  status.workers = {{.rank = Rank(0), .activity = "computing"}};
  status.waited_for = {Rank(0)};
  add(30, 1010);
  EXPECT_EQ(rate.per_second(), 1);
  EXPECT_EQ(rate.now_per_second(), 1);
  // A pause of 40 s does not.
  status.workers[0].activity = "vacant";
  add(31, 1010);
  add(64, 1010);
  EXPECT_EQ(rate.per_second(), 1);
  EXPECT_EQ(rate.now_per_second(), 0);
  status.phase = StatusView::Phase::kTraining;
  add(65, 1010);
  EXPECT_EQ(rate.per_second(), 1);
  add(66, 1015);
  EXPECT_EQ(rate.per_second(), 5);
}

TEST(RunRecorderTest, RowsHoldMeansByLossWeightAndLabels) {
  const std::string folder = absl::StrCat(::testing::TempDir(), "/recorder");
  std::filesystem::create_directories(folder);
  std::ostringstream out;
  const SteadyClock clock;
  RecorderOptions options;
  options.results_dir = folder;
  absl::StatusOr<std::unique_ptr<RunRecorder>> recorder =
      RunRecorder::Open(options, out, clock, [] { return Training(); });
  ASSERT_TRUE(recorder.ok()) << recorder.status();
  (*recorder)->Begin();
  // Of weight 1 with loss 1, and 3 with loss 5: mean 4; 2 of 8 labels. The
  // skipped one adds nothing, nor the one whose labels were all ignored.
  (*recorder)->Committed({.version = Version(1),
                          .samples = 1,
                          .commit_samples = 1,
                          .loss = 1,
                          .accuracy = 1,
                          .loss_weight = 1,
                          .labels = 2,
                          .learning_rate = 0.5});
  (*recorder)->Committed({.version = Version(2),
                          .samples = 4,
                          .commit_samples = 3,
                          .loss = 5,
                          .accuracy = 0,
                          .loss_weight = 3,
                          .labels = 6,
                          .learning_rate = 0.25});
  (*recorder)->Committed(
      {.version = Version(3), .samples = 4, .loss = 9, .skipped = true});
  (*recorder)->Committed(
      {.version = Version(4), .samples = 9, .commit_samples = 5});
  (*recorder)->Finish();

  std::ifstream file(folder + "/history.csv");
  std::string header;
  std::string row;
  std::getline(file, header);
  std::getline(file, row);
  EXPECT_THAT(row, StartsWith("4,1,9,"));
  EXPECT_THAT(row, HasSubstr(",4.000000,0.250000,"));
  EXPECT_THAT(
      row, EndsWith(",2,\"sync, global normalisation, sync statistics\",,,"));
}

std::vector<std::string> Lines(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// What a run begins with.
PolicyRecord FirstPolicy() {
  return {.policy_epoch = 1, .changed = SettingsOf({}), .text = "sync"};
}

PolicyRecord ToAsync() {
  return {.policy_epoch = 2,
          .version = Version(1),
          .samples = 4,
          .changed = {{"aggregation", "async"}, {"normalization", "local"}},
          .text = "a \"text\", with a comma"};
}

TEST(RunRecorderTest, NoRowHasCommitsOfTwoPolicies) {
  const TempDir folder;
  std::ostringstream out;
  const SteadyClock clock;
  RecorderOptions options;
  options.results_dir = folder.path();
  options.run.run_name = "nightly";
  options.policies = {FirstPolicy()};
  absl::StatusOr<std::unique_ptr<RunRecorder>> recorder =
      RunRecorder::Open(options, out, clock, [] { return Training(); });
  ASSERT_TRUE(recorder.ok()) << recorder.status();
  (*recorder)->Begin();
  (*recorder)->Committed(
      {.version = Version(1), .samples = 4, .commit_samples = 4});
  (*recorder)->PolicyChanged(ToAsync());
  // Told twice, recorded once.
  (*recorder)->PolicyChanged(ToAsync());
  (*recorder)->Committed(
      {.version = Version(2), .samples = 6, .commit_samples = 2});
  (*recorder)->Finish();

  const std::vector<std::string> history = Lines(folder.File("history.csv"));
  ASSERT_EQ(history.size(), 3u);
  EXPECT_THAT(history[1], StartsWith("1,1,4,"));
  EXPECT_THAT(history[1], HasSubstr("\"sync, global"));
  EXPECT_THAT(history[2], StartsWith("2,1,6,"));
  EXPECT_THAT(history[2], HasSubstr("\"async, local"));
  const std::vector<std::string> policy = Lines(folder.File("policy.csv"));
  ASSERT_EQ(policy.size(), 3u);
  EXPECT_THAT(policy[1], StartsWith("1,0,0,0.000,\""));
  EXPECT_THAT(policy[1], HasSubstr(" aggregation=sync "));
  EXPECT_THAT(policy[2], StartsWith("2,1,4,"));
  EXPECT_THAT(policy[2], EndsWith(",\"aggregation=async normalization=local\","
                                  "\"a \"\"text\"\", with a comma\",nightly"));
  EXPECT_THAT(
      out.str(),
      HasSubstr("policy sync -> async, local normalisation at step 1\n"));
}

// The results of before may lie elsewhere, or here.
TEST(RunRecorderTest, ContinuedRunHasEachChangeOnce) {
  const TempDir folder;
  const SteadyClock clock;
  PolicyRecord resumed{.policy_epoch = 3,
                       .version = Version(5),
                       .samples = 20,
                       .changed = {{"learning_rate", "0.5"}},
                       .text = "continued"};
  RecorderOptions options;
  options.results_dir = folder.path();
  options.restored = Version(5);
  options.policies = {FirstPolicy(), ToAsync(), resumed};
  for (int times = 0; times < 2; ++times) {
    std::ostringstream out;
    // The second time, the third is old too.
    options.policies_before = times == 0 ? 2 : 3;
    absl::StatusOr<std::unique_ptr<RunRecorder>> recorder =
        RunRecorder::Open(options, out, clock, [] { return Training(); });
    ASSERT_TRUE(recorder.ok()) << recorder.status();
    (*recorder)->Begin();
    (*recorder)->Finish();
    EXPECT_EQ(out.str().find("policy learning_rate 0.1 -> 0.5 at step 5") !=
                  std::string::npos,
              times == 0);
    EXPECT_THAT(out.str(), Not(HasSubstr("policy sync -> async")));
  }
  const std::vector<std::string> policy = Lines(folder.File("policy.csv"));
  ASSERT_EQ(policy.size(), 4u);
  // This process cannot tell when.
  EXPECT_THAT(policy[2], StartsWith("2,1,4,,\""));
  EXPECT_THAT(policy[3], StartsWith("3,5,20,0.000,\"learning_rate=0.5\""));
}

// A run that got as far as version 9 after its checkpoint of version 4, with
// both kinds evaluated at 4, and was killed while it wrote.
TEST(RunRecorderTest, ContinuedFilesLoseWhatIsComputedAgain) {
  const TempDir folder;
  const std::string head = "version,epoch,samples,seconds,train_loss,...\n";
  const std::string policy = ",\"sync, with a \"\"quote\"\"\",";
  WriteText(folder.File("history.csv"),
            absl::StrCat(head, "3,1,12,20.500,0.5,0.5,0.1,9,,,2", policy,
                         ",,\n4,1,16,30.250,0.4,0.5,0.1,9,0.7,0.6,2", policy,
                         "sync,,\n4,1,,30.250,,,,,0.8,0.5,2", policy,
                         "chief,,\n9,2,36,70.000,0.4,0.5,0.1,9,,,2", policy,
                         ",,\n9,2,36,7"));
  WriteText(folder.File("class_iou.csv"),
            "version,epoch,bn_statistics,class,iou\n"
            "4,1,sync,0,0.5\n9,2,sync,0,0.75\n");
  WriteText(folder.File("policy.csv"),
            "policy_epoch,version\n1,0,a\n2,1,b\n3,8,never came about\n");
  const SteadyClock clock;
  std::ostringstream out;
  RecorderOptions options;
  options.results_dir = folder.path();
  options.restored = Version(4);
  options.policies = {FirstPolicy(), ToAsync()};
  options.policies_before = 2;
  absl::StatusOr<std::unique_ptr<RunRecorder>> recorder =
      RunRecorder::Open(options, out, clock, [] { return Training(); });
  ASSERT_TRUE(recorder.ok()) << recorder.status();
  (*recorder)->Begin();
  const EarlierCourse& earlier = (*recorder)->earlier();
  EXPECT_EQ(earlier.elapsed, absl::Seconds(30.25));
  ASSERT_EQ(earlier.training.size(), 1u);
  EXPECT_EQ(earlier.training[0].version, 3);
  ASSERT_EQ(earlier.evaluations.size(), 2u);
  EXPECT_EQ(earlier.evaluations[1].statistics, "chief");
  ASSERT_TRUE(earlier.test.has_value());
  EXPECT_EQ(earlier.test->accuracy, 0.6);
  // The first kind is evaluated once more, and another one for the first time.
  (*recorder)->Evaluated({.version = Version(4),
                          .epochs = 1,
                          .results = {{.statistics = StatisticsKind::kSync},
                                      {.statistics = StatisticsKind::kAsync}}});
  (*recorder)->Committed(
      {.version = Version(5), .samples = 20, .commit_samples = 4});
  (*recorder)->Finish();

  const std::vector<std::string> history = Lines(folder.File("history.csv"));
  ASSERT_EQ(history.size(), 6u);
  EXPECT_THAT(history[3], HasSubstr("chief"));
  EXPECT_THAT(history[4], StartsWith("4,1,,30."));
  EXPECT_THAT(history[4], HasSubstr(",async,"));
  EXPECT_THAT(history[5], StartsWith("5,1,20,30."));
  EXPECT_EQ(Lines(folder.File("class_iou.csv")).size(), 2u);
  EXPECT_THAT(Lines(folder.File("policy.csv")),
              ElementsAre("policy_epoch,version", "1,0,a", "2,1,b"));
}

TEST(HistoryCourseTest, TimeOfCommitsWithoutARowIsEstimated) {
  const std::string rest = ",0.5,0.25,0.1,9,,,2,sync,,,";
  const EarlierCourse course =
      CourseOf({"50,1,200,10" + rest, "100,1,400,30" + rest}, Version(130));
  ASSERT_EQ(course.training.size(), 2u);
  EXPECT_EQ(course.training[1].commits, 50);
  // 200 images of a mean loss of 0.5.
  EXPECT_EQ(course.training[1].loss_sum, 100);
  EXPECT_EQ(course.training[1].loss_weight, 200);
  EXPECT_EQ(course.training[1].correct, 50);
  // 20 s for 50 commits: 12 s for the 30 that have no row.
  EXPECT_EQ(course.elapsed, absl::Seconds(42));
  EXPECT_FALSE(course.test.has_value());
}

TEST(HistoryCourseTest, NoRowsAreNoCourse) {
  const EarlierCourse course =
      CourseOf({"of,another,release", ""}, Version(130));
  EXPECT_TRUE(course.training.empty());
  EXPECT_EQ(course.elapsed, absl::ZeroDuration());
}

class WatchersTest : public ::testing::Test {
 protected:
  class HandClock final : public Clock {
   public:
    Instant Now() const override { return now; }
    Instant now;
  };

  void Ask(absl::string_view page, std::initializer_list<double> seconds,
           absl::Duration again = absl::ZeroDuration()) {
    for (double second : seconds) {
      clock_.now = absl::Seconds(second);
      watchers_.Asked(page, again);
    }
  }

  HandClock clock_;
  Watchers watchers_{clock_};
};

TEST_F(WatchersTest, WhoNeverAsksIsNotWaitedFor) {
  EXPECT_EQ(watchers_.UntilAllAsk(), absl::ZeroDuration());
  // Somebody who looked twice.
  Ask("/status.json", {1, 2});
  EXPECT_EQ(watchers_.UntilAllAsk(), absl::ZeroDuration());
}

// It says when it asks again, so that one who opens it in a run's last second
// sees the end.
TEST_F(WatchersTest, APageThatHasJustBeenOpenedIsWaitedFor) {
  Ask("/status.json", {1}, absl::Seconds(1));
  EXPECT_EQ(watchers_.UntilAllAsk(), absl::Seconds(2.25));
  clock_.now = absl::Seconds(4);
  EXPECT_EQ(watchers_.UntilAllAsk(), absl::Seconds(2.25));
  clock_.now = absl::Seconds(4.5);
  EXPECT_EQ(watchers_.UntilAllAsk(), absl::ZeroDuration());
}

TEST_F(WatchersTest, APageThatIsLateIsWaitedForLonger) {
  Ask("status", {1});
  Ask("/status.json", {1, 2}, absl::Seconds(1));
  const auto seen = [this](double second) {
    clock_.now = absl::Seconds(second);
    return watchers_.HaveSeen(absl::Seconds(2.5), absl::Seconds(2.25));
  };
  EXPECT_FALSE(seen(4.7));
  EXPECT_FALSE(seen(9));
  EXPECT_TRUE(seen(14.75));
  Ask("/status.json", {9}, absl::Seconds(1));
  EXPECT_TRUE(seen(9));
  // Others may look at it as well.
  EXPECT_FALSE(seen(4.7));
}

TEST_F(WatchersTest, TheSlowestIsWaitedFor) {
  Ask("/metrics", {0, 16, 32});
  Ask("/status.json", {33, 34, 35});
  EXPECT_EQ(watchers_.UntilAllAsk(), absl::Seconds(21));
}

TEST_F(WatchersTest, TwoWhoAskBetweenEachOtherAreTold) {
  Ask("/metrics", {0, 2, 16, 18, 32, 34});
  EXPECT_GE(watchers_.UntilAllAsk(), absl::Seconds(16));
}

TEST_F(WatchersTest, WhoHasGoneIsNotWaitedFor) {
  Ask("/status.json", {1, 2, 3});
  EXPECT_GT(watchers_.UntilAllAsk(), absl::ZeroDuration());
  clock_.now = absl::Seconds(10);
  EXPECT_EQ(watchers_.UntilAllAsk(), absl::ZeroDuration());
  // Back an hour later, as somebody new.
  Ask("/status.json", {3600, 3601});
  EXPECT_EQ(watchers_.UntilAllAsk(), absl::ZeroDuration());
  Ask("/status.json", {3602});
  EXPECT_EQ(watchers_.UntilAllAsk(), absl::Seconds(2.25));
}

TEST(HistoryTableTest, FieldsLoseTheirQuotes) {
  EXPECT_THAT(CsvFields("1,\"a, \"\"b\"\"\",,2"),
              ElementsAre("1", "a, b", "", "2"));
}

// SetFlags over a command line with these arguments.
absl::StatusOr<bool> Set(std::vector<std::string> arguments,
                         std::set<std::string>* given = nullptr) {
  arguments.insert(arguments.begin(), "program");
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  return SetFlags(pointers, given);
}

TEST(CommandLineTest, SetsFlagsInAllSpellings) {
  ASSERT_TRUE(Set({"--parts_count=5", "--parts_switch"}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_parts_count), 5);
  EXPECT_TRUE(absl::GetFlag(FLAGS_parts_switch));
  ASSERT_TRUE(Set({"--parts_count", "6", "--noparts_switch"}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_parts_count), 6);
  EXPECT_FALSE(absl::GetFlag(FLAGS_parts_switch));
  EXPECT_TRUE(*Set({"--help"}));
}

TEST(CommandLineTest, TellsWhichFlagsWereGiven) {
  std::set<std::string> given;
  // The default, but explicitly.
  ASSERT_TRUE(Set({"--parts_count=2"}, &given).ok());
  EXPECT_THAT(given, ElementsAre("parts_count"));
  ASSERT_TRUE(Set({"--noparts_switch"}, &given).ok());
  EXPECT_THAT(given, ElementsAre("parts_count", "parts_switch"));
}

TEST(CommandLineTest, NearestWordIsTheOneWithTheFewestEdits) {
  EXPECT_EQ(NearestWord("statsu", {"export", "status"}), "status");
  EXPECT_EQ(NearestWord("frobnicate", {"export", "status"}), "");
  // Three edits make any short word of any other.
  EXPECT_EQ(NearestWord("out", {"quiet", "json"}), "");
}

TEST(CommandLineTest, TellsUsageFromBadValues) {
  const absl::Status unknown = Set({"--parts_cout=5"}).status();
  EXPECT_EQ(ExitCodeOf(unknown), kExitUsage);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("--parts_count?"));
  EXPECT_EQ(ExitCodeOf(Set({"stray"}).status()), kExitUsage);
  EXPECT_EQ(ExitCodeOf(Set({"--parts_count"}).status()), kExitUsage);
  const absl::Status bad = Set({"--parts_count=many"}).status();
  EXPECT_EQ(ExitCodeOf(bad), kExitConfig);
  EXPECT_THAT(std::string(bad.message()), HasSubstr("'many'"));
}

TEST(CommandLineTest, BadChoiceNamesFlagValueAndChoices) {
  const absl::Status status =
      ParseChoice<int>("pet", "fish", {{"cat", 1}, {"dog", 2}}).status();
  EXPECT_EQ(status.message(), "--pet: got 'fish', want one of cat, dog");
}

}  // namespace
}  // namespace cohort
