#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "tests/ctl/ctl_harness.h"
#include "tests/ctl/prints_error.h"

namespace cohort {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr char kSetAsync[] =
    "policy set --aggregation=async --normalization=local";

v1::SetPolicyReply Accepted(int64_t policy_epoch, bool pending) {
  v1::SetPolicyReply reply;
  reply.set_policy_epoch(policy_epoch);
  reply.set_version(1230);
  reply.set_pending(pending);
  reply.set_text("aggregation sync -> async");
  return reply;
}

// A server on which a change takes `delay` to take effect, or to end with
// `outcome`.
void TakeEffectAfter(CtlHarness& ctl, absl::Duration delay,
                     const absl::Status& outcome = absl::OkStatus()) {
  ctl.server.on_set = [=, &ctl](const v1::SetPolicyRequest& request)
      -> absl::StatusOr<v1::SetPolicyReply> {
    EXPECT_EQ(request.has_awaited(), ctl.paused() > absl::ZeroDuration());
    EXPECT_LE(request.wait_ms(), 1000);
    ctl.Pass(
        std::min(absl::Milliseconds(request.wait_ms()), delay - ctl.paused()));
    const bool done = ctl.paused() >= delay;
    if (done && !outcome.ok()) return outcome;
    v1::SetPolicyReply reply = Accepted(2, !done);
    reply.set_pending_reason("waiting for worker 1, gives up in 90 s");
    reply.mutable_awaited()->set_policy_epoch(2);
    if (done) *reply.mutable_change() = ChangedPolicy().history(1);
    return reply;
  };
}

TEST(PolicySetTest, ReportsFromWhichVersionOnItIsInForce) {
  CtlHarness ctl;
  TakeEffectAfter(ctl, absl::Milliseconds(300));
  const CtlResult result = ctl.Run(kSetAsync);
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out,
            "policy sync -> async, local normalisation at step 1234\n");
  EXPECT_EQ(result.err, "");
}

TEST(PolicySetTest, SendsTheSettingsForTheRunItHasSeen) {
  CtlHarness ctl;
  v1::SetPolicyRequest seen;
  ctl.server.on_set = [&](const v1::SetPolicyRequest& request) {
    seen = request;
    return Accepted(2, true);
  };
  ctl.environment = {"USER=ana"};
  EXPECT_EQ(ctl.Run("--normalization local policy set --aggregation=async "
                    "--nowait --dry_run --reason=slow")
                .code,
            0);
  EXPECT_EQ(seen.reason(), "slow");
  EXPECT_THAT(seen.author(), testing::StartsWith("ana@"));
  EXPECT_EQ(seen.run_id(), "3f2a");
  EXPECT_TRUE(seen.dry_run());
  EXPECT_EQ(seen.settings().size(), 2);
  EXPECT_EQ(seen.settings().at("aggregation"), "async");
  EXPECT_EQ(seen.settings().at("normalization"), "local");
}

TEST(PolicySetTest, SaysWhomItWaitsFor) {
  CtlHarness ctl;
  TakeEffectAfter(ctl, absl::Milliseconds(11'500));
  const CtlResult result = ctl.Run(kSetAsync);
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(
      result.err,
      ContainsRegex("after 1 s of 1 min .* worker 1, gives up in 90 s\n"
                    ".* after 11 s of 1 min .* worker 1, gives up in 90 s\n"));
}

TEST(PolicySetTest, AChangeThatIsLostIsAFailureInTheServersWords) {
  for (const auto& [code, status, text] :
       {std::tuple(1, absl::AbortedError("it was restarted"), "it was restart"),
        std::tuple(5, absl::UnavailableError("gone"),
                   "policy history` show")}) {
    CtlHarness ctl;
    TakeEffectAfter(ctl, absl::Seconds(2), status);
    EXPECT_THAT(ctl.Run(kSetAsync), PrintsError(code, text));
  }
}

TEST(PolicySetTest, GivesUpAtTheTimeoutAndTheChangeStays) {
  CtlHarness ctl;
  TakeEffectAfter(ctl, absl::Seconds(10));
  EXPECT_THAT(ctl.Run("policy set --aggregation=async --timeout=500ms"),
              PrintsError(6, "after 0.5 s (--timeout): waiting for worker 1"));
  EXPECT_EQ(ctl.paused(), absl::Milliseconds(500));
}

TEST(PolicySetTest, CtrlCLeavesTheChangeAskedFor) {
  CtlHarness ctl;
  TakeEffectAfter(ctl, absl::Seconds(10));
  ctl.interrupt_at = absl::Seconds(1);
  EXPECT_THAT(ctl.Run(kSetAsync),
              PrintsError(1, "interrupted\nThe change is still pending"));
}

TEST(PolicySetTest, DryRunAndNowaitReturnAtOnce) {
  CtlHarness ctl;
  ctl.server.on_set = [](const auto&) { return Accepted(2, true); };
  EXPECT_EQ(ctl.Run("policy set --aggregation=async --dry_run").out,
            "would change aggregation sync -> async\n");
  EXPECT_EQ(ctl.Run("policy set --aggregation=async --nowait").out,
            "requested: aggregation sync -> async\n");
  EXPECT_EQ(ctl.Run("policy set --aggregation=async --nowait --json").out,
            R"({"policy_epoch":2,"version":1230,)"
            R"("text":"aggregation sync -> async","in_force":false})"
            "\n");
  // What is in force already has nothing to wait for.
  ctl.server.on_set = [](const auto&) { return Accepted(1, false); };
  EXPECT_EQ(ctl.Run("policy set --aggregation=sync").out,
            "aggregation sync -> async\n");
  EXPECT_EQ(ctl.paused(), absl::ZeroDuration());
}

TEST(PolicySetTest, JsonOfAChangeInForce) {
  CtlHarness ctl;
  TakeEffectAfter(ctl, absl::ZeroDuration());
  const CtlResult result =
      ctl.Run("policy set --json --aggregation=async --normalization=local");
  EXPECT_EQ(result.out,
            R"({"policy_epoch":2,"version":1234,"samples":9872,)"
            R"("settings":{"aggregation":"async","normalization":"local"},)"
            R"("text":"aggregation sync -> async; momentum is kept",)"
            R"("author":"","reason":"","in_force":true})"
            "\n");
}

TEST(PolicySetTest, UnknownSettingIsSuggested) {
  CtlHarness ctl;
  EXPECT_THAT(ctl.Run("policy set --agregation=async"),
              PrintsError(2, "did you mean --aggregation?"));
  EXPECT_THAT(ctl.Run("policy set --dryrun --aggregation=async"),
              PrintsError(2, "did you mean --dry_run?"));
  EXPECT_THAT(ctl.Run("policy set"), PrintsError(2, "got no setting"));
}

TEST(PolicySetTest, RefusalIsToldInTheServersWordsWithWhatToDo) {
  CtlHarness ctl;
  ctl.server.on_set = [](const auto&) {
    return absl::InvalidArgumentError("--aggregation: got 'x'");
  };
  EXPECT_THAT(ctl.Run("policy set --aggregation=x"),
              PrintsError(3,
                          "cohortctl: --aggregation: got 'x'\nNothing was "
                          "changed; `cohortctl policy get`"));
  ctl.server.on_set = [](const auto&) {
    return absl::FailedPreconditionError("the run is over: drained");
  };
  EXPECT_THAT(ctl.Run("policy set --aggregation=x"),
              PrintsError(3,
                          "cohortctl: the run is over: drained\nNothing was "
                          "changed; `cohortctl status`"));
}

TEST(PolicyGetTest, ListsSettingsAndTheChangeUnderWay) {
  CtlHarness ctl;
  ctl.server.policy = PendingPolicy();
  EXPECT_EQ(ctl.Run("policy get").out,
            "sync, global normalisation, sync statistics, since step 0\n"
            "change to aggregation=async normalization=local: waiting for "
            "worker 1, gives up in 90 s\n"
            "\n"
            "setting        value\n"
            "aggregation    sync\n"
            "learning_rate  0.1\n"
            "normalization  auto\n");
}

TEST(PolicyGetTest, ChangedListsOnlyWhatDiffersFromTheDefaults) {
  CtlHarness ctl;
  ctl.server.policy = ChangedPolicy();
  EXPECT_EQ(ctl.Run("policy get --changed").out,
            "async, local normalisation, async statistics, since step 1234\n"
            "\n"
            "setting        value  default\n"
            "aggregation    async  sync\n"
            "normalization  local  auto\n");
}

// A server on which a change has been made, and the next one acts at once.
class PolicyRevertTest : public testing::Test {
 protected:
  PolicyRevertTest() {
    ctl_.server.policy = ChangedPolicy();
    ctl_.server.on_set = [this](const v1::SetPolicyRequest& request) {
      seen_ = request;
      return Accepted(3, true);
    };
  }

  CtlHarness ctl_;
  v1::SetPolicyRequest seen_;
};

TEST_F(PolicyRevertTest, SetsWhatThatChangeAndThoseBeforeItHadSet) {
  for (const char* command :
       {"policy revert --nowait", "policy revert --to=1 --nowait"}) {
    EXPECT_EQ(ctl_.Run(command).code, 0);
    EXPECT_EQ(seen_.settings().size(), 2);
    EXPECT_EQ(seen_.settings().at("aggregation"), "sync");
    EXPECT_EQ(seen_.settings().at("normalization"), "auto");
  }
}

// A run starts with --optimizer=auto, which is a rule by now.
TEST_F(PolicyRevertTest, LeavesTheOptimizerThatAutoHasTaken) {
  v1::GetPolicyReply& policy = ctl_.server.policy;
  (*policy.mutable_history(0)->mutable_settings())["optimizer"] = "auto";
  (*policy.mutable_settings())["optimizer"] = "momentum";
  EXPECT_EQ(ctl_.Run("policy revert --nowait").code, 0);
  EXPECT_EQ(seen_.settings().count("optimizer"), 0u);
  EXPECT_EQ(seen_.settings().at("aggregation"), "sync");
}

// The server wants the rates named with every change to or from local steps.
TEST_F(PolicyRevertTest, NamesTheRatesThatLocalStepsGiveAnotherMeaning) {
  v1::GetPolicyReply& policy = ctl_.server.policy;
  for (const char* name : {"local_steps", "weight_decay"}) {
    (*policy.mutable_history(0)->mutable_settings())[name] = "0";
    (*policy.mutable_settings())[name] = "0";
  }
  (*policy.mutable_settings())["local_steps"] = "4";
  EXPECT_EQ(ctl_.Run("policy revert --nowait").code, 0);
  EXPECT_EQ(seen_.settings().at("local_steps"), "0");
  EXPECT_EQ(seen_.settings().at("weight_decay"), "0");
}

TEST_F(PolicyRevertTest, TheSettingsInForceAndUnknownChangesAreRefused) {
  EXPECT_THAT(ctl_.Run("policy revert --to=2"), PrintsError(3, "change 2 "));
  EXPECT_THAT(ctl_.Run("policy revert --to=9"), PrintsError(3, "--to: got 9"));
  ctl_.server.policy = ExamplePolicy();
  EXPECT_THAT(ctl_.Run("policy revert").err, HasSubstr("got no change"));
}

TEST(PolicyGetTest, Json) {
  CtlHarness ctl;
  ctl.server.policy = ChangedPolicy();
  EXPECT_EQ(
      ctl.Run("policy get --json").out,
      R"({"run":"3f2a","policy_epoch":2,"text":"async, local normalisation, )"
      R"(async statistics","since_version":1234,"settings":{)"
      R"("aggregation":"async","learning_rate":"0.1",)"
      R"("normalization":"local"},"pending":{},"pending_reason":""})"
      "\n");
}

TEST(PolicyHistoryTest, ShowsWhatChangedAndAtWhichVersion) {
  CtlHarness ctl;
  v1::GetPolicyReply& policy = ctl.server.policy = ChangedPolicy();
  policy.mutable_history(1)->set_author("ana@lab");
  policy.mutable_history(1)->set_reason("one slow node");
  EXPECT_EQ(
      ctl.Run("policy history").out,
      "change  step  samples  policy                                      "
      " by       reason\n"
      "1       0     0        sync, global normalisation, sync "
      "statistics\n"
      "2       1234  9872     sync -> async, local normalisation         "
      "  ana@lab  one slow node\n");
  const auto json = nlohmann::json::parse(ctl.Run("policy history --json").out);
  EXPECT_EQ(json["run"], "3f2a");
  EXPECT_EQ(json["changes"][1]["settings"]["aggregation"], "async");
  EXPECT_EQ(json["changes"][1]["version"], 1234);
}

}  // namespace
}  // namespace cohort
