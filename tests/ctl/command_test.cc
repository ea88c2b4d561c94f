// How cohortctl handles its command line, and servers that are not there.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/ctl/ctl.h"
#include "server/ctl/verb.h"
#include "tests/ctl/ctl_harness.h"
#include "tests/ctl/prints_error.h"

namespace cohort {
namespace {

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
  EXPECT_EQ(result.out,
            R"(cohortctl: starts, observes and changes runs

Examples:
  cohortctl run --workers=4
  cohortctl watch --server=127.0.0.1:7070
  cohortctl policy set --aggregation=async --normalization=local

Verbs:
  run                 trains on this machine: starts a server and its workers
  study               measures which policy suits a model, on this machine
  runs                compares runs by their results folders, without a server
  status              shows state, progress, policy and workers of the run
  watch               shows a live view until the run is over; keys act on it
  doctor              checks a run that does not work, and says how to fix it
  support-bundle      packs state, settings, metrics and logs for a bug report
  health              checks through an operations port whether a process is ready
  policy get          shows the settings in force and the pending change
  policy set          changes settings while the run goes on
  policy revert       goes back to the settings after an earlier change
  policy history      lists every change of settings with its step
  workers list        lists ranks, workers and when each was last heard from
  workers drain       lets a worker finish its step and leave
  workers evict       ends a worker's incarnation, as if the process had died
  run drain           ends the run after the current step and writes its results
  checkpoint save     writes a checkpoint and waits until it is on disk
  checkpoint list     lists the checkpoints in a folder, without a server
  checkpoint verify   reads every byte of checkpoints and names damaged files
  statistics collect  collects the moving statistics `after` over fixed weights
  export              writes model.safetensors into the server's results_dir
  log level           shows or changes the server's log level
  trace merge         merges the timelines of all processes on one clock
  certs init          makes an authority and certificates for a trial
  certs issue         makes certificates with an authority of certs init
  certs show          shows identity, issuer, dates and SHA-256 of certificates
  certs token         makes a token for a viewer, and writes its hash
  supervise           runs a program and starts it again when it dies, as the entry of a container
  completion          prints a completion script for a shell

`cohortctl help` has flags and exit codes, `cohortctl help VERB` each verb.
)");
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
  EXPECT_EQ(ctl_.RunPlain("help workers").out, R"(Verbs:
  workers list   lists ranks, workers and when each was last heard from
  workers drain  lets a worker finish its step and leave
  workers evict  ends a worker's incarnation, as if the process had died

`cohortctl help workers list` has its flags and examples.
)");
}

TEST_F(CtlCommandTest, TheServersFlagTakesPrecedenceOverItsVariable) {
  ctl_.environment = {"COHORT_SERVER=127.0.0.1:1"};
  EXPECT_EQ(ctl_.RunPlain("status --timeout=100ms").code, 5);
  EXPECT_EQ(
      ctl_.RunPlain(absl::StrCat("status --server=", ctl_.server.address()))
          .code,
      0);
  ctl_.environment = {absl::StrCat("COHORT_SERVER=", ctl_.server.address())};
  EXPECT_EQ(ctl_.RunPlain("status").code, 0);
}

TEST_F(CtlCommandTest, WrongUseIsSuggestedAgainstAndIsExitCode2) {
  struct Case {
    const char* arguments;
    const char* err;
  };
  const Case cases[] = {
      {"statsu",
       "unknown verb 'statsu'; did you mean 'status'?\n"
       "`cohortctl help` lists all verbs"},
      {"polcy set --aggregation=async",
       "unknown verb 'polcy set'; did you mean 'policy set'?\n"
       "`cohortctl help` lists all verbs"},
      {"policy",
       "unknown verb 'policy'; there are 'policy get', 'policy set', 'policy "
       "revert', 'policy history'\n`cohortctl help` lists all verbs"},
      {"certs isue worker/0 worker/1 --run=demo",
       "unknown verb 'certs isue'; did you mean 'certs issue'?\n"
       "`cohortctl help` lists all verbs"},
      {"cert",
       "unknown verb 'cert'; did you mean 'certs ...'?\n"
       "`cohortctl help` lists all verbs"},
      {"frobnicate",
       "unknown verb 'frobnicate'\n`cohortctl help` lists all verbs"},
      {"--json",
       "got no verb, want one such as 'status'\n"
       "`cohortctl help` lists all verbs"},
      {"status --wach",
       "'status' has no flag --wach; did you mean --watch?\n"
       "`cohortctl help status` lists its flags"},
      // This flag belongs to another verb.
      {"export --dry_run",
       "'export' has no flag --dry_run\n"
       "`cohortctl help export` lists its flags"},
      {"workers evict 1",
       "got '1' after 'workers evict', want only flags\n"
       "`cohortctl help workers evict` lists them"},
      {"run darin",
       "unknown verb 'run darin'; did you mean 'run drain'?\n"
       "`cohortctl help` lists all verbs"},
      {"run watch",
       "unknown verb 'run watch'; did you mean 'watch'?\n"
       "`cohortctl help` lists all verbs"},
      {"run 4",
       "got '4' after 'run', want only flags\n"
       "`cohortctl help run` lists them"},
      {"run --server=10.0.0.1:7070",
       "'run' contacts no running server: --server means nothing here\n"
       "`cohortctl help run` lists its flags"},
      {"status -- --batch_size=8",
       "got '--', want nothing behind the flags of 'status'\n"
       "`cohortctl help status` lists them"},
      {"completion powershell",
       "got shell 'powershell', want bash, zsh or fish\n"
       "`cohortctl help completion` shows how it is used"},
      {"workers drain",
       "got no --rank, want that of the worker\n"
       "`cohortctl workers list` shows them"},
      {"status --watch=yes", "--watch takes no value, got 'yes'"},
      {"status --timeout", "--timeout wants a value: --timeout=T"},
      {"status --timeout=1s --timeout=2s", "--timeout is given twice"},
      {"status --=x", "got '--=x', want --name=value"}};
  for (const Case& c : cases) {
    EXPECT_THAT(ctl_.RunPlain(c.arguments), PrintsError(2, c.err));
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
      {"run --programs=/nowhere",
       "/nowhere: has no executable cohort-server\nBuild it with `cmake "
       "--build --preset release --target cohort-server cohort-worker "
       "cohortctl`, or say where it is with --programs=DIR"},
      {"watch --interval=1ms",
       "--interval: got '1ms', want a duration such as 2s, of at least "
       "100ms"},
      {"workers drain --rank=-1", "--rank: got '-1', want 0 or more"},
      {"log level loud --server=127.0.0.1:1 --timeout=0s",
       "--timeout: got '0s', want a duration such as 30s or 5m"}};
  for (const Case& c : cases) {
    EXPECT_THAT(ctl_.RunPlain(c.arguments), PrintsError(3, c.err));
  }
}

TEST_F(CtlCommandTest, HelpOfRunHasExamplesFirst) {
  EXPECT_EQ(
      ctl_.RunPlain("help run").out,
      R"(cohortctl run [-- FLAGS OF THE WORKERS, OR A PROGRAM]: trains on this machine: starts a server and its workers

Examples:
  cohortctl run --workers=4
  cohortctl run --workers=4 --aggregation=async --epochs=3 --model=resnet20 --batch_size=32
  cohortctl run --checkpoint_dir=state --resume
  cohortctl run --workers=4 --tls=certs
  cohortctl run --workers=4 --epochs=3 -- python3 train.py

Flags:
  --workers=N        number of workers (default 2); MIN:MAX of an elastic cohort starts MAX
  --shards=N         server processes that share the model (default 1); more need --checkpoint_dir
  --max_restarts=N   restarts in a row, without a step in between, of a worker or data shard that dies (default 3)
  --log_dir=DIR      folder for server.log and worker-N.log; the screen then shows only the server
  --tls=DIR          encrypt: makes certificates in this folder, with its authority or a new one, and renews those of the same --run_name
  --programs=DIR     folder of cohort-server and cohort-worker (default: that of cohortctl)
  --FLAG=VALUE       a flag of cohort-server or cohort-worker, whose --help lists them;
                     one that both have goes to the server, behind -- to the workers
  --output=FORMAT    or -o: table (default), or json (one line each)
  --json             the same as --output=json
  --timeout=T        longest wait for an answer or a change (default 1m)
  --quiet            or -q: no messages except errors; results as usual
  --no_color         no colours, as with NO_COLOR in the environment
  --help             explain the verb
  --version          print version and commit
)");
}

TEST_F(CtlCommandTest, TheEnvironmentNamesTheServerAndAFlagWins) {
  ctl_.environment = {absl::StrCat("COHORT_SERVER=", ctl_.server.address()),
                      // Variables of other programs.
                      "COHORT_WORKERS=4", "COHORT_MODEL=cnn"};
  EXPECT_EQ(ctl_.RunPlain("status").code, 0);
  ctl_.environment = {"COHORT_SERVER=127.0.0.1:1"};
  EXPECT_EQ(ctl_.Run("status").code, 0);
}

TEST_F(CtlCommandTest, AMisspeltVariableIsRefusedWithItsNearestName) {
  ctl_.environment = {"COHORT_SEVER=127.0.0.1:1"};
  EXPECT_THAT(
      ctl_.Run("status"),
      PrintsError(2,
                  "unknown variable COHORT_SEVER in the environment; did "
                  "you mean COHORT_SERVER?"));
  EXPECT_EQ(ctl_.RunPlain("help status").code, 0);
}

TEST_F(CtlCommandTest, QuietLeavesResultsAndErrors) {
  ctl_.server.on_drain = [](const v1::DrainRequest&) {
    return v1::DrainReply();
  };
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

TEST_F(CtlCommandTest, BadTimeoutIsExitCode3) {
  for (const char* bad : {"soon", "0s", "-1s", "10"}) {
    EXPECT_THAT(
        ctl_.Run(absl::StrCat("status --timeout=", bad)),
        PrintsError(3, absl::StrCat("--timeout: got '", bad,
                                    "', want a duration such as 30s or 5m\n")));
  }
}

TEST_F(CtlCommandTest, UnreachableServerIsExitCode5) {
  ctl_.server.Shutdown();
  for (const char* verb :
       {"status", "policy get", "policy set --aggregation=async",
        "workers list", "run drain", "checkpoint save", "statistics collect",
        "export"}) {
    EXPECT_THAT(
        ctl_.Run(verb),
        PrintsError(
            5, absl::StrCat(
                   ctl_.server.address(),
                   ": cannot be reached (Connection refused)\nIs "
                   "cohort-server running there? It prints the address that "
                   "it listens on when it starts; pass it as "
                   "--server\n")));
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
  ctl_.server.on_checkpoint = []() -> absl::StatusOr<v1::CheckpointReply> {
    return absl::CancelledError("CANCELLED");
  };
  EXPECT_THAT(ctl_.Run("checkpoint save"),
              PrintsError(5,
                          "the server stopped during the request, which may or "
                          "may not have been done\n"));
}

TEST_F(CtlCommandTest, ServerOfAnotherReleaseIsRecognised) {
  ctl_.server.on_get = []() -> absl::StatusOr<v1::GetPolicyReply> {
    return absl::UnimplementedError("");
  };
  EXPECT_THAT(
      ctl_.Run("policy get"),
      PrintsError(
          1, absl::StrCat(ctl_.server.address(),
                          ": does not know this request: it is a server of "
                          "another release, or none of Cohort's\nCheck "
                          "--server, or use the cohortctl of that release\n")));
}

TEST_F(CtlCommandTest, ServerThatDoesNotAnswerIsExitCode5AtTheTimeout) {
  ctl_.server.on_status = []() -> absl::StatusOr<v1::Status> {
    return absl::DeadlineExceededError("as gRPC says it");
  };
  EXPECT_THAT(
      ctl_.Run("workers list --timeout=5s"),
      PrintsError(5, absl::StrCat(
                         ctl_.server.address(),
                         ": no answer within 5s\nIs it a Cohort server, and is "
                         "the way to it open? Try again with a longer "
                         "--timeout\n")));
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
