#include "common/cli/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "common/cli/command_line.h"
#include "tests/fakes/statuses.h"

ABSL_FLAG(int32_t, room_count, 3, "how many there are");
ABSL_FLAG(bool, room_lit, false, "whether it is on");
ABSL_FLAG(std::string, room_name, "none", "what it is called");

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class EnvironmentTest : public testing::Test {
 protected:
  absl::Status Set(const std::vector<std::string>& environment) {
    static const FlagTable& flags = *new FlagTable{
        {.name = "room_count"}, {.name = "room_lit"}, {.name = "room_name"}};
    return SetFlagsFromEnvironment(environment, flags, given_);
  }
  std::string Refusal(const std::string& entry, ExitCode code) {
    const absl::Status status = Set({entry});
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(ExitCodeOf(status), code);
    return std::string(status.message());
  }

  const absl::FlagSaver saver_;
  std::set<std::string> given_;
};

TEST_F(EnvironmentTest, SetsFlagsByTheirNamesInCapitals) {
  ExpectOk(Set({"PATH=/bin", "COHORT_ROOM_COUNT=7", "COHORT_ROOM_LIT=true",
                "COHORT_ROOM_NAME=a=b c"}));
  EXPECT_EQ(absl::GetFlag(FLAGS_room_count), 7);
  EXPECT_TRUE(absl::GetFlag(FLAGS_room_lit));
  EXPECT_EQ(absl::GetFlag(FLAGS_room_name), "a=b c");
  EXPECT_THAT(given_, ElementsAre("room_count", "room_lit", "room_name"));
}

TEST_F(EnvironmentTest, YieldsToTheCommandLine) {
  given_ = {"room_count"};
  ASSERT_TRUE(Set({"COHORT_ROOM_COUNT=7"}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_room_count), 3);
}

TEST_F(EnvironmentTest, AnEmptyVariableIsAbsent) {
  ASSERT_TRUE(Set({"COHORT_ROOM_COUNT=", "COHORT_NO_SUCH="}).ok());
  EXPECT_EQ(absl::GetFlag(FLAGS_room_count), 3);
  EXPECT_THAT(given_, IsEmpty());
}

TEST_F(EnvironmentTest, AnUnknownVariableIsUsageAndGetsASuggestion) {
  EXPECT_THAT(Refusal("COHORT_ROOM_CUONT=7", kExitUsage),
              HasSubstr("mean COHORT_ROOM_COUNT?"));
  EXPECT_THAT(Refusal("COHORT_SOMETHING_ELSE=7", kExitUsage),
              Not(HasSubstr("did you mean")));
  // A flag of a library.
  EXPECT_THAT(Refusal("COHORT_GTEST_SHUFFLE=1", kExitUsage),
              HasSubstr("unknown variable"));
}

TEST_F(EnvironmentTest, AValueThatDoesNotFitNamesTheVariable) {
  EXPECT_THAT(Refusal("COHORT_ROOM_COUNT=many", kExitConfig),
              HasSubstr("COHORT_ROOM_COUNT: got 'many'"));
}

TEST_F(EnvironmentTest, WhatKubernetesAddsForAServiceIsPassedOver) {
  ExpectOk(Set({"COHORT_SERVER_SERVICE_HOST=10.0.0.1",
                "COHORT_SERVER_SERVICE_PORT=7070",
                "COHORT_SERVER_SERVICE_PORT_GRPC=7070",
                "COHORT_SERVER_PORT=tcp://10.0.0.1:7070",
                "COHORT_SERVER_PORT_7070_TCP=tcp://10.0.0.1:7070",
                "COHORT_SERVER_PORT_7070_TCP_ADDR=10.0.0.1",
                "COHORT_SERVER_PORT_7070_TCP_PORT=7070",
                "COHORT_SERVER_PORT_7070_TCP_PROTO=tcp"}));
  EXPECT_THAT(Refusal("COHORT_ROOM_PORT=7070", kExitUsage),
              HasSubstr("unknown variable"));
}

TEST_F(EnvironmentTest, WhatScriptsReadIsPassedOver) {
  EXPECT_TRUE(Set({"COHORT_BIN_DIR=bin", "COHORT_SKIP_DEPS=1"}).ok());
  EXPECT_TRUE(Set({"COHORT_KILLS=3", "COHORT_SIM_SEEDS=9"}).ok());
}

TEST_F(EnvironmentTest, WhatAnotherProgramReadsIsPassedOver) {
  ExpectOk(Set({"COHORT_MODEL=cnn", "COHORT_WORKERS=4",
                "COHORT_CHECKPOINT_DIR=state", "COHORT_PRECISION=float32"}));
  EXPECT_THAT(given_, IsEmpty());
  EXPECT_THAT(Refusal("COHORT_CHEKPOINT_DIR=state", kExitUsage),
              HasSubstr("mean COHORT_CHECKPOINT_DIR?"));
}

TEST(EnvironmentCheckTest, KnowsWhatAnyProgramReads) {
  ExpectOk(CheckVariables({"COHORT_MODEL=cnn", "COHORT_SERVER=a:1",
                           "COHORT_SOURCE_DIR=src", "PATH=/bin"}));
  EXPECT_THAT(CheckVariables({"COHORT_SEVER=a:1"}),
              IsError(kNotFound, "mean COHORT_SERVER?"));
}

TEST(EnvironmentValueTest, IsTheOneOfThatNameOnly) {
  const std::vector<std::string> environment = {"AB=1", "A=2", "C"};
  EXPECT_EQ(ValueIn(environment, "A"), "2");
  EXPECT_EQ(ValueIn(environment, "C"), "");
}

TEST(EnvironmentValueTest, OfThisProcessIsComplete) {
  EXPECT_EQ(ValueIn(Environment(), "PATH"), getenv("PATH"));
}

}  // namespace
}  // namespace cohort
