// How cohortctl handles its command line, and servers that are not there.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/ctl/ctl.h"
#include "server/ctl/verb.h"
#include "tests/ctl/ctl_harness.h"
#include "tests/ctl/prints_error.h"

namespace cohort {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class CtlCommandTest : public testing::Test {
 protected:
  CtlHarness ctl_;
};

TEST_F(CtlCommandTest, WithoutArgumentsHelpsInShort) {
  const CtlResult result = ctl_.RunPlain("");
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, HasSubstr("\nExamples:\n  cohortctl run "));
  for (const Verb& verb : Verbs()) {
    EXPECT_THAT(result.out, ContainsRegex(absl::StrCat(
                                "\n  ", std::string(verb.name), " +[a-z]")));
    EXPECT_THAT(result.out, HasSubstr(std::string(verb.summary) + "\n"));
  }
}

TEST_F(CtlCommandTest, HelpExplainsEveryVerbItsFlagsAndExitCodes) {
  EXPECT_THAT(ctl_.RunPlain("help").out, HasSubstr("5 server unreachable"));
  EXPECT_EQ(ctl_.RunPlain("--help").out, ctl_.RunPlain("help").out);
  for (const Verb& verb : Verbs()) {
    const std::string name(verb.name);
    const CtlResult help = ctl_.RunPlain(absl::StrCat("help ", name));
    EXPECT_EQ(help.code, 0);
    EXPECT_THAT(
        help.out,
        StartsWith(absl::StrCat(
            "cohortctl ", name, verb.words.empty() ? "" : " ",
            std::string(verb.words), verb.rest.empty() ? "" : " [-- ",
            std::string(verb.rest), verb.rest.empty() ? "" : "]", ": ")));
    EXPECT_EQ(ctl_.RunPlain(absl::StrCat(name, " -h")).out, help.out);
    EXPECT_THAT(help.out, ContainsRegex("\nExamples:\n(.*\n)+Flags:\n"));
    for (const FlagSpec& flag : verb.flags) {
      EXPECT_THAT(help.out,
                  HasSubstr(absl::StrCat("--", std::string(flag.name))));
    }
    // Examples are commands: with --help they parse up to the verb, and name
    // it.
    ASSERT_FALSE(verb.examples.empty()) << name;
    for (absl::string_view example : verb.examples) {
      ASSERT_TRUE(absl::ConsumePrefix(&example, "cohortctl "));
      EXPECT_THAT(std::string(example), StartsWith(name));
    }
  }
}

TEST_F(CtlCommandTest, HelpOfAGroupListsItsVerbs) {
  std::set<std::string> groups;
  for (const Verb& verb : Verbs()) {
    const std::vector<std::string> words =
        absl::StrSplit(std::string(verb.name), ' ');
    if (words.size() == 2) groups.insert(words[0]);
  }
  EXPECT_EQ(groups.count("certs"), 1u);
  for (const std::string& group : groups) {
    const CtlResult help = ctl_.RunPlain(absl::StrCat("help ", group));
    EXPECT_EQ(help.code, 0) << group;
    EXPECT_EQ(help.err, "") << group;
    EXPECT_EQ(ctl_.RunPlain(absl::StrCat(group, " --help")).out, help.out);
  }
  const std::string workers = ctl_.RunPlain("help workers").out;
  for (const char* name :
       {"workers list ", "workers drain ", "workers evict "}) {
    EXPECT_THAT(workers, HasSubstr(absl::StrCat("\n  ", name)));
  }
  EXPECT_THAT(workers, Not(HasSubstr("certs")));
}

TEST_F(CtlCommandTest, WrongUseIsSuggestedAgainstAndIsExitCode2) {
  struct Case {
    const char* arguments;
    const char* err;
  };
  const Case cases[] = {
      {"statsu", "mean 'status'?\n`cohortctl help` "},
      {"polcy set --aggregation=async",
       "'polcy set'; did you mean 'policy set'"},
      {"policy", "'policy get', 'policy set', 'policy revert'"},
      {"certs isue worker/0 --run=demo", "mean 'certs issue'?"},
      {"cert", "mean 'certs ...'?"},
      {"frobnicate", "unknown verb 'frobnicate'\n"},
      {"--json", "such as 'status'\n`cohortctl help` "},
      {"watch --intervl=1s", "mean --interval?\n`cohortctl help watch` "},
      // This flag belongs to another verb.
      {"export --dry_run", "--dry_run\n`cohortctl help export` "},
      {"workers evict 1", "got '1' after 'workers evict'"},
      {"run darin", "'run darin'; did you mean 'run drain'?"},
      {"run watch", "'run watch'; did you mean 'watch'?"},
      {"run 4", "got '4' after 'run'"},
      {"run --server=10.0.0.1:7070", "'run' contacts no running server"},
      {"status -- --batch_size=8", "got '--'"},
      {"completion powershell", "'powershell', want bash, zsh or fish"},
      {"workers drain", "got no --rank"},
      {"status --quiet=yes", "--quiet takes no value, got 'yes'"},
      {"status --timeout", "--timeout needs a value: --timeout=T"},
      {"status --timeout=1s --timeout=2s", "--timeout is given twice"},
      {"status --=x", "got '--=x', want --name=value"}};
  for (const Case& c : cases) {
    EXPECT_THAT(ctl_.RunPlain(c.arguments), PrintsError(2, c.err));
  }
}

// A flag that every verb would parse, but that changes nothing for this one.
TEST_F(CtlCommandTest, CommonFlagsWithoutEffectAreRefusedAndNotOffered) {
  constexpr int kWithoutServer = 13;
  int without_server = 0;
  for (const Verb& verb : Verbs()) {
    const std::string name(verb.name);
    const std::string help = ctl_.RunPlain(absl::StrCat("help ", name)).out;
    for (const FlagSpec& flag : CommonFlags()) {
      const std::string typed =
          absl::StrCat("--", flag.name, flag.value.empty() ? "" : "=x");
      const std::string listed =
          absl::StrCat("\n  --", flag.name, flag.value.empty() ? " " : "=");
      EXPECT_EQ(absl::StrContains(help, listed), Takes(verb, flag.name))
          << name << listed;
      if (Takes(verb, flag.name)) continue;
      EXPECT_THAT(ctl_.RunPlain(absl::StrCat(name, " ", typed)),
                  PrintsError(2, absl::StrCat("--", flag.name,
                                              " means nothing "
                                              "here")));
    }
    without_server += Takes(verb, "server") ? 0 : 1;
  }
  EXPECT_EQ(without_server, kWithoutServer);
  for (const char* command :
       {"certs init --run=demo --tls_cert=x", "certs token --name=a --json",
        "checkpoint list --dir=a --timeout=1s", "health --server=127.0.0.1:1",
        "health --token_file=x", "supervise --output=json -- true"}) {
    EXPECT_THAT(ctl_.RunPlain(command), PrintsError(2, " means nothing here"));
  }
}

TEST_F(CtlCommandTest, ValuesThatCannotBeAreExitCode3) {
  struct Case {
    const char* arguments;
    const char* err;
  };
  const Case cases[] = {
      {"run --workers=0", "--workers: got '0', want 1 to 999, or MIN:MAX"},
      {"run --workers=four",
       "--workers: got 'four', want 1 to 999, or MIN:MAX"},
      {"run --max_restarts=-1", "--max_restarts: got '-1', want 0 to 1000000"},
      {"run --programs=/nowhere", "/nowhere: has no executable cohort-server"},
      {"watch --interval=1ms", "--interval: got '1ms'"},
      {"workers drain --rank=-1", "--rank: got '-1', want 0 or more"},
      {"status --server=a:1 --timeout=soon", "--timeout: got 'soon'"},
      {"status --server=a:1 --timeout=-1s", "--timeout: got '-1s'"},
      {"status --server=a:1 --timeout=10", "--timeout: got '10'"},
      {"log level loud --server=127.0.0.1:1 --timeout=0s",
       "--timeout: got '0s'"}};
  for (const Case& c : cases) {
    EXPECT_THAT(ctl_.RunPlain(c.arguments), PrintsError(3, c.err));
  }
}

TEST_F(CtlCommandTest, TheEnvironmentNamesTheServerAndAFlagWins) {
  ctl_.environment = {absl::StrCat("COHORT_SERVER=", ctl_.server.address()),
                      // Variables of other programs.
                      "COHORT_WORKERS=4", "COHORT_MODEL=cnn"};
  EXPECT_EQ(ctl_.RunPlain("status").code, 0);
  ctl_.environment = {"COHORT_SERVER=127.0.0.1:1"};
  EXPECT_EQ(ctl_.Run("status").code, 0);
  EXPECT_EQ(ctl_.RunPlain("status --timeout=100ms").code, 5);
}

TEST_F(CtlCommandTest, AMisspeltVariableIsRefusedWithItsNearestName) {
  ctl_.environment = {"COHORT_SEVER=127.0.0.1:1"};
  EXPECT_THAT(ctl_.Run("status"), PrintsError(2, "mean COHORT_SERVER?"));
  EXPECT_EQ(ctl_.RunPlain("help status").code, 0);
}

TEST_F(CtlCommandTest, QuietLeavesResultsAndErrors) {
  ctl_.server.on_drain = [](const auto&) { return v1::DrainReply(); };
  EXPECT_NE(ctl_.Run("run drain").err, "");
  for (const char* quiet :
       {"run drain -q", "run drain --quiet", "-q run drain"}) {
    const CtlResult result = ctl_.Run(quiet);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.out, StartsWith("draining since step 0"));
    EXPECT_EQ(result.err, "");
  }
  ctl_.server.Shutdown();
  EXPECT_THAT(ctl_.Run("export --quiet"), PrintsError(5, "cannot be reached"));
}

TEST_F(CtlCommandTest, NoColorTakesColoursAway) {
  ctl_.color = true;
  EXPECT_THAT(ctl_.Run("workers list").out, HasSubstr("\x1b["));
  EXPECT_THAT(ctl_.Run("workers list --no_color").out, Not(HasSubstr("\x1b[")));
}

TEST_F(CtlCommandTest, UnreachableServerIsExitCode5) {
  ctl_.server.Shutdown();
  for (const char* verb :
       {"status", "policy get", "policy set --aggregation=async",
        "workers list", "run drain", "checkpoint save", "statistics collect",
        "export"}) {
    EXPECT_THAT(ctl_.Run(verb),
                PrintsError(5, absl::StrCat(ctl_.server.address(),
                                            ": cannot be reached (Conn")));
  }
}

// As after the loss of a data shard.
TEST_F(CtlCommandTest, AServerThatIsBackInAMomentIsAskedAgain) {
  for (const absl::Status& broken :
       {absl::CancelledError("CANCELLED"), absl::UnavailableError("GOAWAY")}) {
    int calls = 0;
    ctl_.server.on_checkpoint = [&]() -> absl::StatusOr<v1::CheckpointReply> {
      if (++calls == 1) return broken;
      return v1::CheckpointReply();
    };
    EXPECT_EQ(ctl_.Run("checkpoint save").code, 0);
    EXPECT_EQ(calls, 2);
  }
  ctl_.server.on_checkpoint = [] { return absl::CancelledError("CANCELLED"); };
  EXPECT_THAT(ctl_.Run("checkpoint save"),
              PrintsError(5, "may or may not have been done"));
}

TEST_F(CtlCommandTest, ServerOfAnotherReleaseIsRecognised) {
  ctl_.server.on_get = [] { return absl::UnimplementedError(""); };
  EXPECT_THAT(ctl_.Run("policy get"),
              PrintsError(1, "does not know this request"));
}

TEST_F(CtlCommandTest, ServerThatDoesNotAnswerIsExitCode5AtTheTimeout) {
  ctl_.server.on_status = [] {
    return absl::DeadlineExceededError("as gRPC says it");
  };
  EXPECT_THAT(ctl_.Run("workers list --timeout=5s"),
              PrintsError(5, "no answer within 5s"));
}

TEST_F(CtlCommandTest, ExitCodeTellsWhatKindOfErrorItWas) {
  EXPECT_EQ(ExitCodeForVerb(absl::OkStatus()), kExitOk);
  EXPECT_EQ(ExitCodeForVerb(absl::NotFoundError("")), kExitUsage);
  EXPECT_EQ(ExitCodeForVerb(absl::InvalidArgumentError("")), kExitConfig);
  EXPECT_EQ(ExitCodeForVerb(absl::FailedPreconditionError("")), kExitConfig);
  EXPECT_EQ(ExitCodeForVerb(absl::UnavailableError("")), kExitUnreachable);
  EXPECT_EQ(ExitCodeForVerb(absl::DeadlineExceededError("")), kExitWaitTimeout);
  EXPECT_EQ(ExitCodeForVerb(absl::InternalError("")), kExitFailure);
}

}  // namespace
}  // namespace cohort
