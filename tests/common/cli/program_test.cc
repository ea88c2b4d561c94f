#include "common/cli/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "common/build_info.h"

ABSL_FLAG(std::string, listen, "127.0.0.1:1", "where");
ABSL_FLAG(int32_t, workers, 2, "how many");
ABSL_FLAG(int32_t, rank, -1, "which");

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

class ProgramTest : public testing::Test {
 protected:
  std::optional<ExitCode> Read(std::vector<std::string> arguments,
                               const std::vector<std::string>& environment) {
    arguments.insert(arguments.begin(), "tool");
    std::vector<char*> raw;
    for (std::string& argument : arguments) raw.push_back(argument.data());
    return ReadFlags(
        {.text = {.name = "tool", .summary = "Does it.", .examples = {"tool"}},
         .flags = flags_},
        raw, {.out = out_, .err = err_, .environment = environment}, &given_);
  }

  const absl::FlagSaver saver_;
  const FlagTable flags_ = {{.name = "listen",
                             .default_text = "127.0.0.1:1",
                             .subject = "network",
                             .heading = "Network",
                             .help = "Where to listen."},
                            {.name = "workers",
                             .default_text = "2",
                             .limits = Between(1, 9),
                             .subject = "run",
                             .heading = "The run",
                             .help = "How many."}};
  std::ostringstream out_;
  std::ostringstream err_;
  std::set<std::string> given_;
};

TEST_F(ProgramTest, TheCommandLineWinsOverVariables) {
  EXPECT_EQ(Read({"--listen=0.0.0.0:9"},
                 {"COHORT_LISTEN=0.0.0.0:8", "COHORT_WORKERS=4"}),
            std::nullopt);
  EXPECT_EQ(absl::GetFlag(FLAGS_listen), "0.0.0.0:9");
  EXPECT_EQ(absl::GetFlag(FLAGS_workers), 4);
  EXPECT_THAT(given_, ElementsAre("listen", "workers"));
}

TEST_F(ProgramTest, HelpAndVersionAnswerInAnyEnvironment) {
  EXPECT_EQ(Read({"--help"}, {"COHORT_WROKERS=4", "COHORT_WORKERS=x"}),
            kExitOk);
  EXPECT_THAT(out_.str(), StartsWith("tool: Does it.\n"));
  out_.str("");
  EXPECT_EQ(Read({"--workers=x", "--version"}, {"COHORT_WORKERS=x"}), kExitOk);
  EXPECT_EQ(out_.str(), VersionText("tool") + "\n");
  EXPECT_THAT(err_.str(), IsEmpty());
}

TEST_F(ProgramTest, HelpOfASubjectHasItsFlagsOnly) {
  EXPECT_EQ(Read({"--help=run"}, {}), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("--workers=2"));
  EXPECT_THAT(out_.str(), Not(HasSubstr("--listen")));
  EXPECT_EQ(Read({"--help=weather"}, {}), kExitUsage);
  EXPECT_THAT(
      err_.str(),
      HasSubstr("--help: got subject 'weather', want one of network, run"));
}

TEST_F(ProgramTest, LimitsHoldWhereverAValueComesFrom) {
  constexpr char kWanted[] = "tool: --workers: got 10, want 1 to 9\n";
  EXPECT_EQ(Read({"--workers=10"}, {}), kExitConfig);
  EXPECT_EQ(err_.str(), kWanted);
  err_.str("");
  EXPECT_EQ(Read({}, {"COHORT_WORKERS=10"}), kExitConfig);
  EXPECT_EQ(err_.str(), kWanted);
}

TEST_F(ProgramTest, WrongUseIsToldWithWhereToLook) {
  EXPECT_EQ(Read({}, {"COHORT_WROKERS=4"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("mean COHORT_WORKERS?"));
  EXPECT_THAT(out_.str(), IsEmpty());
}

TEST_F(ProgramTest, ValuesThatCannotBeUsedAreConfiguration) {
  EXPECT_EQ(Read({}, {"COHORT_WORKERS=x"}), kExitConfig);
}

TEST(BuildInfoTest, NamesVersionAndCommit) {
  EXPECT_EQ(GetBuildInfo().version, COHORT_VERSION);
  EXPECT_FALSE(GetBuildInfo().commit.empty());
  EXPECT_EQ(VersionText("tool"),
            absl::StrCat("tool ", COHORT_VERSION, " (commit ",
                         GetBuildInfo().commit, ")"));
}

}  // namespace
}  // namespace cohort
