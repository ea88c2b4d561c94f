#include "common/log/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace cohort {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;

// What a test writes to stderr. The log is one for the process, so that each
// test sets it up anew.
class LogTest : public testing::Test {
 protected:
  void SetUp() override {
    SetLogContext({});
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

// The captured stderr is a file and no terminal.
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

// Names come from other machines.
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

}  // namespace
}  // namespace cohort
