#include "common/log/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/log/log_limiter.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;

// Captures what a test writes to stderr. The process has one log, so each test
// sets it up again.
class LogTest : public testing::Test {
 protected:
  void SetUp() override {
    SetLogContext({});
    SetLogVersion(-1);
    // Discards output of earlier tests.
    FlushLog();
    testing::internal::CaptureStderr();
  }
  std::string Written() { return testing::internal::GetCapturedStderr(); }
};

TEST_F(LogTest, HumanLinesShowTimeProcessLevelTextAndFields) {
  InitLogging({.format = LogFormat::kHuman, .process = "server"});
  Log(LogLevel::kWarning, "rank lost", {{"rank", "2"}, {"version", "7"}});
  EXPECT_THAT(Written(),
              MatchesRegex("[0-9]+:[0-9]+:[0-9.]+ server warning: rank lost "
                           "rank=2 version=7\n"));
}

TEST_F(LogTest, JsonLinesAreOneObjectEach) {
  InitLogging({.format = LogFormat::kJson, .process = "worker"});
  Log(LogLevel::kInfo, "a \"quoted\"\nline", {{"rank", "2"}});
  const std::string text = Written();
  ASSERT_EQ(text.find('\n'), text.size() - 1) << text;
  const auto line = nlohmann::json::parse(text);
  EXPECT_EQ(line.at("level"), "info");
  EXPECT_EQ(line.at("process"), "worker");
  EXPECT_EQ(line.at("message"), "a \"quoted\"\nline");
  EXPECT_EQ(line.at("rank"), "2");
  EXPECT_THAT(line.at("time").get<std::string>(),
              MatchesRegex("....-..-..T..:..:......Z"));
}

// A program reads the number, a person the start and the number in it.
TEST_F(LogTest, IncarnationsHaveANumberForProgramsAndATextForPeople) {
  const Incarnation second_start((int64_t{2} << 32) + 4);
  InitLogging({.format = LogFormat::kJson, .process = "server"});
  SetLogContext({IncarnationField(Incarnation(int64_t{2} << 32))});
  Log(LogLevel::kInfo, "a", {IncarnationField(second_start)});
  InitLogging({.format = LogFormat::kHuman, .process = "server"});
  Log(LogLevel::kInfo, "b");
  const std::vector<std::string> lines = absl::StrSplit(Written(), '\n');
  const auto json = nlohmann::json::parse(lines.at(0));
  EXPECT_EQ(json.at("incarnation"), "8589934596");
  EXPECT_EQ(json.at("incarnation_text"), "2.5");
  EXPECT_THAT(lines.at(1), HasSubstr(" incarnation=2.1"));
}

// The captured stderr is a file, not a terminal.
TEST_F(LogTest, AutoMeansJsonWhereThereIsNoTerminal) {
  InitLogging({.format = LogFormat::kAuto, .process = "worker"});
  Log(LogLevel::kInfo, "text");
  EXPECT_EQ(nlohmann::json::parse(Written()).at("message"), "text");
}

TEST_F(LogTest, LowerLevelsAreLeftOutUntilTheLevelIsChanged) {
  InitLogging({.level = LogLevel::kWarning, .format = LogFormat::kHuman});
  Log(LogLevel::kInfo, "first");
  SetLogLevel(LogLevel::kDebug);
  Log(LogLevel::kDebug, "second");
  const std::string text = Written();
  EXPECT_THAT(text, Not(HasSubstr("first")));
  EXPECT_THAT(text, HasSubstr("second"));
}

TEST_F(LogTest, TheContextIsOnEveryLine) {
  InitLogging({.format = LogFormat::kHuman});
  SetLogContext({{"run", "r1"}});
  Log(LogLevel::kInfo, "text", {{"rank", "0"}});
  EXPECT_THAT(Written(), HasSubstr(": text run=r1 rank=0\n"));
}

// Names come from other machines, so they are untrusted.
TEST_F(LogTest, InputCannotForgeALine) {
  InitLogging({.format = LogFormat::kHuman});
  Log(LogLevel::kInfo, "a\nb", {{"name", "x\ny\x1b[31m"}});
  const std::string text = Written();
  EXPECT_EQ(text.find('\n'), text.size() - 1) << text;
  EXPECT_THAT(text, HasSubstr("a\\x0ab name=x\\x0ay\\x1b[31m"));
}

TEST_F(LogTest, TextThatIsNoUtf8IsStillLogged) {
  InitLogging({.format = LogFormat::kJson});
  Log(LogLevel::kInfo, "bad \xff byte");
  EXPECT_THAT(nlohmann::json::parse(Written()).at("message").get<std::string>(),
              HasSubstr("bad "));
}

TEST_F(LogTest, TheVersionIsOnEveryLineThatNamesNone) {
  InitLogging({.format = LogFormat::kJson});
  SetLogVersion(7);
  Log(LogLevel::kInfo, "first");
  Log(LogLevel::kInfo, "second", {{"version", "5"}});
  const std::vector<std::string> lines =
      absl::StrSplit(Written(), '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(nlohmann::json::parse(lines[0]).at("version"), "7");
  EXPECT_EQ(nlohmann::json::parse(lines[1]).at("version"), "5");
}

TEST_F(LogTest, RepetitionsAreLeftOutAndCounted) {
  InitLogging({.format = LogFormat::kHuman});
  const int64_t before = LogMessageCount(LogLevel::kWarning);
  for (int i = 0; i < LogLimiter::kLinesMax + 30; ++i) {
    Log(LogLevel::kWarning, absl::StrCat("rank ", i, " is slow"));
  }
  Log(LogLevel::kWarning, "something else");
  FlushLog();
  // Reported once.
  FlushLog();
  const std::vector<std::string> lines =
      absl::StrSplit(Written(), '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), LogLimiter::kLinesMax + 2);
  EXPECT_THAT(lines[LogLimiter::kLinesMax], HasSubstr("something else"));
  EXPECT_THAT(lines.back(), HasSubstr("30 similar lines"));
  EXPECT_EQ(LogMessageCount(LogLevel::kWarning) - before,
            LogLimiter::kLinesMax + 31);
}

TEST_F(LogTest, LinesBelowTheLevelAreNotCounted) {
  InitLogging({.level = LogLevel::kWarning});
  const int64_t before = LogMessageCount(LogLevel::kInfo);
  Log(LogLevel::kInfo, "text");
  EXPECT_EQ(LogMessageCount(LogLevel::kInfo), before);
  EXPECT_EQ(CurrentLogLevel(), LogLevel::kWarning);
  Written();
}

TEST(LogLevelTest, NamesAreReadBackAndOthersRefused) {
  for (const LogLevel level : {LogLevel::kDebug, LogLevel::kInfo,
                               LogLevel::kWarning, LogLevel::kError}) {
    EXPECT_EQ(*ParseLogLevel(LogLevelName(level)), level);
  }
  EXPECT_THAT(ParseLogLevel("loud"),
              IsError(kInvalidArgument, "got 'loud', want debug"));
}

TEST(LogLimiterTest, AnIntervalLaterLinesComeThroughAgain) {
  LogLimiter limiter;
  for (int i = 0; i < LogLimiter::kLinesMax; ++i) {
    EXPECT_TRUE(limiter.Admit("step 1", absl::ZeroDuration()));
  }
  EXPECT_FALSE(limiter.Admit("step 22", absl::Seconds(1)));
  EXPECT_TRUE(limiter.Admit("another text", absl::Seconds(1)));
  EXPECT_THAT(limiter.TakeEnded(absl::Seconds(9)), testing::IsEmpty());
  const auto told = limiter.TakeEnded(absl::Seconds(10));
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].lines, 1);
  EXPECT_EQ(told[0].text, "step 22");
  EXPECT_TRUE(limiter.Admit("step 23", absl::Seconds(10)));
}

// Names chosen by strangers produce ever new texts.
TEST(LogLimiterTest, ManyKindsAreLimitedTogether) {
  // Twelve letters, a different text for each number.
  const auto name = [](int number) {
    std::string text;
    for (int bit = 0; bit < 12; ++bit) {
      text.push_back((number >> bit & 1) != 0 ? 'p' : 'q');
    }
    return text;
  };
  LogLimiter limiter;
  for (int i = 0; i < static_cast<int>(LogLimiter::kKindsMax); ++i) {
    EXPECT_TRUE(limiter.Admit(name(i), absl::ZeroDuration()));
  }
  int64_t admitted = 0;
  for (int i = 0; i < 1000; ++i) {
    admitted += limiter.Admit(name(1000 + i), absl::ZeroDuration());
  }
  EXPECT_EQ(admitted, LogLimiter::kLinesMax);
  // Texts that were seen earlier are not affected.
  EXPECT_TRUE(limiter.Admit(name(0), absl::ZeroDuration()));
}

}  // namespace
}  // namespace cohort
