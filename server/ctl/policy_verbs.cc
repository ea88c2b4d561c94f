#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/cli/command_line.h"
#include "common/flags/flag_table.h"
#include "common/measures/change_headline.h"
#include "common/status_macros.h"
#include "server/ctl/json_line.h"
#include "server/ctl/table.h"
#include "server/ctl/verb.h"

namespace cohort {
namespace {

using Json = nlohmann::ordered_json;
using Settings = std::map<std::string, std::string>;
using ProtoSettings = google::protobuf::Map<std::string, std::string>;

// The server answers after so long at the latest, so that Ctrl-C is noticed.
constexpr absl::Duration kWaitMax = absl::Seconds(1);
// The reason for a wait is printed once the wait is noticeable, then at
// intervals.
constexpr absl::Duration kFirstWord = absl::Seconds(1);
constexpr absl::Duration kNextWord = absl::Seconds(10);

Settings Sorted(const ProtoSettings& settings) {
  return Settings(settings.begin(), settings.end());
}

Json ChangeJson(const v1::PolicyChange& change) {
  return {{"policy_epoch", change.policy_epoch()},
          {"version", change.version()},
          {"samples", change.samples()},
          {"settings", Sorted(change.settings())},
          {"text", change.text()},
          {"author", change.author()},
          {"reason", change.reason()}};
}

Json PolicyJson(const v1::GetPolicyReply& policy) {
  return {{"run", policy.run_id()},
          {"policy_epoch", policy.policy_epoch()},
          {"text", policy.text()},
          {"since_version", policy.since_version()},
          {"settings", Sorted(policy.settings())},
          {"pending", Sorted(policy.pending())},
          {"pending_reason", policy.pending_reason()}};
}

// Errors: NotFound if there are no settings, or one has a name that the server
//   does not know. The server checks everything; the check here adds a
//   suggestion for the name.
absl::Status CheckNames(const Settings& settings,
                        const v1::GetPolicyReply& policy) {
  if (settings.empty()) {
    return absl::NotFoundError(
        "got no setting, want one such as --aggregation=async\n`cohortctl "
        "policy get` lists those that can be changed live");
  }
  std::vector<std::string> known = {"dry_run", "nowait", "reason"};
  for (const auto& [name, value] : Sorted(policy.settings())) {
    known.push_back(name);
  }
  for (const auto& [name, value] : settings) {
    if (policy.settings().contains(name)) continue;
    const std::string nearest = NearestWord(name, known);
    return absl::NotFoundError(absl::StrCat(
        "unknown setting --", name, nearest.empty() ? "" : "; did you mean --",
        nearest, nearest.empty() ? "" : "?",
        "\n`cohortctl policy get` lists those that can be changed live"));
  }
  return absl::OkStatus();
}

// The wait that a request asks for, if `left` is left.
int64_t WaitMs(absl::Duration left) {
  return absl::ToInt64Milliseconds(
      absl::Ceil(std::min(left, kWaitMax), absl::Milliseconds(1)));
}

// The settings that were in force after the change `epoch`.
Settings SettingsAfter(const v1::GetPolicyReply& policy, int64_t epoch) {
  Settings settings;
  for (const v1::PolicyChange& change : policy.history()) {
    if (change.policy_epoch() > epoch) break;
    for (const auto& [name, value] : change.settings()) settings[name] = value;
  }
  return settings;
}

// A change in a few words.
std::string Headline(const Settings& before, const v1::PolicyChange& change) {
  return Printable(ChangeHeadline(before, Sorted(change.settings())));
}

void PrintInForce(Context& context, const v1::GetPolicyReply& before,
                  const v1::PolicyChange& change) {
  if (context.json) {
    Json json = ChangeJson(change);
    json["in_force"] = true;
    context.io.out << JsonLine(json);
    return;
  }
  context.io.out << "policy " << Headline(Sorted(before.settings()), change)
                 << " at step " << change.version() << "\n";
}

// Prints a change that was accepted but is not, or not known to be, in force.
void PrintAccepted(Context& context, const v1::SetPolicyReply& reply,
                   absl::string_view prefix) {
  if (context.json) {
    context.io.out << JsonLine({{"policy_epoch", reply.policy_epoch()},
                                {"version", reply.version()},
                                {"text", reply.text()},
                                {"in_force", false}});
  } else {
    context.io.out << prefix << Printable(reply.text()) << "\n";
  }
}

// Waits until the change that `request` has asked for is in force, and prints
// what it waits for. `reply` is the server's latest.
// Errors: Aborted: it does not take effect.
absl::Status AwaitChange(Context& context, const v1::GetPolicyReply& before,
                         v1::SetPolicyRequest request, v1::SetPolicyReply reply,
                         Instant start) {
  constexpr absl::string_view kStays =
      "\nThe change is still pending; `cohortctl policy get` shows whether it "
      "is in force";
  CtlIo& io = context.io;
  Instant word_due = start + kFirstWord;
  Instant answer_due = start + absl::Milliseconds(request.wait_ms());
  while (!reply.has_change()) {
    // Nothing is left unless the server could not let another call wait.
    const absl::Duration left = answer_due - io.clock.Now();
    if (!io.pause(std::max(left, absl::ZeroDuration()))) {
      return absl::CancelledError(absl::StrCat("interrupted", kStays));
    }
    const Instant now = io.clock.Now();
    const std::string reason = Printable(reply.pending_reason());
    if (now - start >= context.timeout) {
      return absl::DeadlineExceededError(
          absl::StrCat("not in force after ", SecondsText(context.timeout),
                       " (--timeout): ", reason, kStays));
    }
    if (now >= word_due) {
      word_due = now + kNextWord;
      io.err << "not in force yet after " << SecondsText(now - start) << " of "
             << SecondsText(context.timeout) << " (--timeout): " << reason
             << std::endl;
    }
    *request.mutable_awaited() = reply.awaited();
    request.set_wait_ms(WaitMs(context.timeout - (now - start)));
    answer_due = now + absl::Milliseconds(request.wait_ms());
    absl::StatusOr<v1::SetPolicyReply> next = context.server.SetPolicy(request);
    COHORT_RETURN_IF_ERROR(
        WithNext(next.status(), absl::StatusCode::kUnavailable,
                 "`cohortctl policy history` shows whether the change took "
                 "effect, once the server is back"));
    reply = *std::move(next);
  }
  PrintInForce(context, before, reply.change());
  return absl::OkStatus();
}

// Settings that differ from their defaults.
Table ChangedTable(const v1::GetPolicyReply& policy) {
  Table table({"setting", "value", "default"});
  for (const auto& [name, value] : Sorted(policy.settings())) {
    const FlagInfo* flag = FindFlag(ServerFlagTable(), name);
    if (flag != nullptr && flag->default_text == value) continue;
    table.Add({name, value, flag == nullptr ? "unknown" : flag->default_text});
  }
  return table;
}

absl::Status RunPolicyGet(Context& context) {
  COHORT_ASSIGN_OR_RETURN(const v1::GetPolicyReply policy,
                          context.server.GetPolicy());
  std::ostream& out = context.io.out;
  if (context.json) {
    out << JsonLine(PolicyJson(policy));
    return absl::OkStatus();
  }
  out << policy.text() << ", since step " << policy.since_version() << "\n";
  const Settings pending = Sorted(policy.pending());
  if (!pending.empty()) {
    out << "change to " << absl::StrJoin(pending, " ", absl::PairFormatter("="))
        << ": " << Printable(policy.pending_reason()) << "\n";
  }
  if (context.arguments.Has("changed")) {
    out << "\n" << ChangedTable(policy).ToString(context.io.color);
    return absl::OkStatus();
  }
  Table table({"setting", "value"});
  for (const auto& [name, value] : Sorted(policy.settings())) {
    table.Add({name, value});
  }
  out << "\n" << table.ToString(context.io.color);
  return absl::OkStatus();
}

absl::Status RunPolicyHistory(Context& context) {
  COHORT_ASSIGN_OR_RETURN(const v1::GetPolicyReply policy,
                          context.server.GetPolicy());
  if (context.json) {
    Json changes = Json::array();
    for (const v1::PolicyChange& change : policy.history()) {
      changes.push_back(ChangeJson(change));
    }
    context.io.out << JsonLine(
        {{"run", policy.run_id()}, {"changes", changes}});
    return absl::OkStatus();
  }
  Table table({"change", "step", "samples", "policy", "by", "reason"});
  for (const v1::PolicyChange& change : policy.history()) {
    const bool first = &change == &policy.history(0);
    table.Add({absl::StrCat(change.policy_epoch()),
               absl::StrCat(change.version()), absl::StrCat(change.samples()),
               first
                   ? Printable(change.text())
                   : Headline(SettingsAfter(policy, change.policy_epoch() - 1),
                              change),
               Printable(change.author()), Printable(change.reason())});
  }
  context.io.out << table.ToString(context.io.color);
  return absl::OkStatus();
}

absl::Status RunPolicySet(Context& context) {
  COHORT_ASSIGN_OR_RETURN(const v1::GetPolicyReply before,
                          context.server.GetPolicy());
  COHORT_RETURN_IF_ERROR(CheckNames(context.settings, before));
  v1::SetPolicyRequest request;
  // Prevents changing another run that has taken the port by now.
  request.set_run_id(before.run_id());
  request.set_dry_run(context.arguments.Has("dry_run"));
  request.set_author(OperatorName(context.io.environment));
  request.set_reason(context.arguments.Value("reason").value_or(""));
  request.mutable_settings()->insert(context.settings.begin(),
                                     context.settings.end());
  const Instant start = context.io.clock.Now();
  const bool waits = !request.dry_run() && !context.arguments.Has("nowait");
  if (waits) {
    // From now on Ctrl-C does not end the process.
    context.io.pause(absl::ZeroDuration());
    request.set_wait_ms(WaitMs(context.timeout));
  }
  const absl::StatusOr<v1::SetPolicyReply> reply =
      context.server.SetPolicy(request);
  COHORT_RETURN_IF_ERROR(WithNext(
      WithNext(reply.status(), absl::StatusCode::kInvalidArgument,
               "Nothing was changed; `cohortctl policy get` lists the settings "
               "and their values"),
      absl::StatusCode::kFailedPrecondition,
      "Nothing was changed; `cohortctl status` shows the run"));
  if (reply->policy_epoch() <= before.policy_epoch()) {
    PrintAccepted(context, *reply, "");
  } else if (request.dry_run()) {
    PrintAccepted(context, *reply, "would change ");
  } else if (!waits) {
    PrintAccepted(context, *reply, "requested: ");
  } else {
    return AwaitChange(context, before, request, *reply, start);
  }
  return absl::OkStatus();
}

// --to, or the change before the newest.
// Errors: InvalidArgument, the history has no such change.
absl::StatusOr<int64_t> ChangeToRevertTo(const Arguments& arguments,
                                         const v1::GetPolicyReply& policy) {
  const int64_t newest =
      policy.history_size() == 0
          ? 0
          : policy.history(policy.history_size() - 1).policy_epoch();
  const std::optional<std::string> text = arguments.Value("to");
  int64_t epoch = newest - 1;
  const bool read = !text.has_value() || absl::SimpleAtoi(*text, &epoch);
  const auto is_it = [epoch](const v1::PolicyChange& change) {
    return change.policy_epoch() == epoch;
  };
  if (read &&
      std::any_of(policy.history().begin(), policy.history().end(), is_it)) {
    return epoch;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--to: got ", text.value_or("no change to go back to"),
                   ", want the number of a change\n`cohortctl policy history` "
                   "lists them"));
}

absl::Status RunPolicyRevert(Context& context) {
  COHORT_ASSIGN_OR_RETURN(const v1::GetPolicyReply policy,
                          context.server.GetPolicy());
  COHORT_ASSIGN_OR_RETURN(const int64_t epoch,
                          ChangeToRevertTo(context.arguments, policy));
  const Settings then = SettingsAfter(policy, epoch);
  for (const auto& [name, value] : then) {
    const auto now = policy.settings().find(name);
    // `auto` became a rule when the workers registered, before any change, and
    // cannot be set any more.
    if (name == "optimizer" && value == "auto") continue;
    if (now != policy.settings().end() && now->second != value) {
      context.settings[name] = value;
    }
  }
  // Local steps give these another meaning, so the server wants them named,
  // whether or not they change.
  if (context.settings.contains("local_steps")) {
    for (const char* name : {"learning_rate", "weight_decay"}) {
      if (then.contains(name)) context.settings[name] = then.at(name);
    }
  }
  if (context.settings.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the settings after change ", epoch,
        " are in force already\nNothing was changed; `cohortctl policy "
        "history` lists all changes"));
  }
  return RunPolicySet(context);
}

// Flags of the verbs that change settings, after `flags`.
std::vector<FlagSpec> ChangeFlags(std::vector<FlagSpec> flags = {}) {
  flags.push_back({"dry_run", "", "check and report, but change nothing"});
  flags.push_back({"nowait", "", "return before the change is in force"});
  flags.push_back({"reason", "TEXT", "why, for the log and policy history"});
  return flags;
}

}  // namespace

Verb PolicyGetVerb() {
  return {.name = "policy get",
          .summary = "shows the settings in force and the pending change",
          .flags = {{"changed", "",
                     "only settings that differ from their defaults"}},
          .examples = {"cohortctl policy get", "cohortctl policy get --changed",
                       "cohortctl policy get --json"},
          .run = &RunPolicyGet};
}

Verb PolicySetVerb() {
  return {.name = "policy set",
          .summary = "changes settings of a live run",
          .flags = ChangeFlags(),
          .takes_settings = true,
          .examples = {"cohortctl policy set --aggregation=async "
                       "--reason='one slow node'",
                       "cohortctl policy set --learning_rate=0.01 --dry_run"},
          .run = &RunPolicySet};
}

Verb PolicyRevertVerb() {
  return {.name = "policy revert",
          .summary = "restores the settings after an earlier change",
          .flags = ChangeFlags({{"to", "N",
                                 "number of the change, from policy history "
                                 "(default: the one before the newest)"}}),
          .examples = {"cohortctl policy revert",
                       "cohortctl policy revert --to=1 --dry_run"},
          .run = &RunPolicyRevert};
}

Verb PolicyHistoryVerb() {
  return {.name = "policy history",
          .summary = "lists every change of settings with its step",
          .examples = {"cohortctl policy history"},
          .run = &RunPolicyHistory};
}

}  // namespace cohort
