#include "common/cli/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "tests/fakes/statuses.h"

ABSL_FLAG(int32_t, test_count, 3, "how many there are");
ABSL_FLAG(bool, test_switch, false, "whether it is on");
ABSL_FLAG(std::string, test_name, "none", "what it is called");

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class SetFlagsTest : public testing::Test {
 protected:
  absl::StatusOr<HelpRequest> Set(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "program");
    std::vector<char*> raw;
    for (std::string& argument : arguments) raw.push_back(argument.data());
    return SetFlags(raw, &given_);
  }

  const absl::FlagSaver saver_;
  std::set<std::string> given_;
};

TEST_F(SetFlagsTest, TakesEveryFormAndTellsWhatWasGiven) {
  const auto help = OkValue(Set({"--test_count=7", "--test_name", "a b"}));
  EXPECT_FALSE(help.asked);
  EXPECT_EQ(absl::GetFlag(FLAGS_test_count), 7);
  EXPECT_EQ(absl::GetFlag(FLAGS_test_name), "a b");
  EXPECT_THAT(given_, ElementsAre("test_count", "test_name"));
}

TEST_F(SetFlagsTest, ASwitchIsOnByItsNameAndOffByNo) {
  ASSERT_TRUE(Set({"--test_switch"}).ok());
  EXPECT_TRUE(absl::GetFlag(FLAGS_test_switch));
  ASSERT_TRUE(Set({"--notest_switch"}).ok());
  EXPECT_FALSE(absl::GetFlag(FLAGS_test_switch));
  ASSERT_TRUE(Set({"--test_switch=true"}).ok());
  EXPECT_TRUE(absl::GetFlag(FLAGS_test_switch));
}

TEST_F(SetFlagsTest, AnEmptyValueAndAnEqualsSignInAValueAreKept) {
  ASSERT_TRUE(Set({"--test_name="}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_test_name), "");
  ASSERT_TRUE(Set({"--test_name=a=b"}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_test_name), "a=b");
}

TEST_F(SetFlagsTest, HelpEndsTheReading) {
  const auto help = OkValue(Set({"--help", "--no_such_flag"}));
  EXPECT_TRUE(help.asked);
  EXPECT_EQ(help.subject, "");
  const auto subject = Set({"--help=network", "--no_such_flag"});
  ASSERT_TRUE(subject.ok()) << subject.status();
  EXPECT_TRUE(subject->asked);
  EXPECT_EQ(subject->subject, "network");
}

TEST_F(SetFlagsTest, AnUnknownFlagIsUsageAndGetsASuggestion) {
  const absl::Status status = Set({"--test_cuont=7"}).status();
  EXPECT_THAT(status, IsError(kNotFound, "did you mean --test_count?"));
  EXPECT_EQ(ExitCodeOf(status), kExitUsage);
  EXPECT_THAT(std::string(Set({"--zzzzzzzzzzzzz"}).status().message()),
              Not(HasSubstr("did you mean")));
}

TEST_F(SetFlagsTest, StrayArgumentsAndMissingValuesAreUsage) {
  const absl::Status stray = Set({"7"}).status();
  EXPECT_THAT(stray, IsError(kFailedPrecondition, "got argument '7'"));
  EXPECT_EQ(ExitCodeOf(stray), kExitUsage);
  const absl::Status missing = Set({"--test_count"}).status();
  EXPECT_EQ(missing.message(), "--test_count needs a value");
  EXPECT_EQ(ExitCodeOf(missing), kExitUsage);
  // Only a switch has a form with "no".
  EXPECT_THAT(std::string(Set({"--notest_count"}).status().message()),
              HasSubstr("unknown flag --notest_count"));
}

TEST_F(SetFlagsTest, AValueThatDoesNotFitIsNamedOnceAndChangesNothing) {
  const absl::Status status = Set({"--test_count=many"}).status();
  EXPECT_THAT(status, IsError(kInvalidArgument, "--test_count: got 'many'"));
  EXPECT_EQ(ExitCodeOf(status), kExitConfig);
  EXPECT_EQ(absl::GetFlag(FLAGS_test_count), 3);
}

TEST(NearestWordTest, IsTheOneWithTheFewestEdits) {
  EXPECT_EQ(NearestWord("statsu", {"export", "status"}), "status");
  EXPECT_EQ(NearestWord("frobnicate", {"export", "status"}), "");
  // Three edits turn any short word into any other.
  EXPECT_EQ(NearestWord("out", {"quiet", "json"}), "");
}

TEST(ParseChoiceTest, FindsAChoiceOrNamesThemAll) {
  const std::vector<std::pair<absl::string_view, int>> choices = {{"one", 1},
                                                                  {"two", 2}};
  EXPECT_EQ(*ParseChoice<int>("number", "two", choices), 2);
  const absl::Status status =
      ParseChoice<int>("number", "three", choices).status();
  EXPECT_EQ(status.code(), kInvalidArgument);
  for (const char* part : {"--number", "three", "one", "two"}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
}

}  // namespace
}  // namespace cohort
