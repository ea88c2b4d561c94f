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

constexpr absl::Duration kPoll = absl::Milliseconds(100);
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
        "policy get` lists them with their values");
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
        "\n`cohortctl policy get` lists the settings and their values"));
  }
  return absl::OkStatus();
}

bool HaveCommonName(const ProtoSettings& a, const Settings& b) {
  return std::any_of(b.begin(), b.end(), [&a](const auto& setting) {
    return a.contains(setting.first);
  });
}

// The change that set `settings`, which has `policy_epoch` or a later one:
// another change that takes effect at once may come in between.
const v1::PolicyChange* FindChange(const v1::GetPolicyReply& policy,
                                   int64_t policy_epoch,
                                   const Settings& settings) {
  const auto found =
      std::find_if(policy.history().begin(), policy.history().end(),
                   [&](const v1::PolicyChange& change) {
                     return change.policy_epoch() >= policy_epoch &&
                            HaveCommonName(change.settings(), settings);
                   });
  return found == policy.history().end() ? nullptr : &*found;
}

// A change in a few words; old values come from the changes before it.
std::string Headline(const v1::GetPolicyReply& policy,
                     const v1::PolicyChange& wanted) {
  Settings before;
  for (const v1::PolicyChange& change : policy.history()) {
    if (&change == &wanted) break;
    for (const auto& [name, value] : change.settings()) before[name] = value;
  }
  return Printable(ChangeHeadline(before, Sorted(wanted.settings())));
}

void PrintInForce(Context& context, const v1::GetPolicyReply& policy,
                  const v1::PolicyChange& change) {
  if (context.json) {
    Json json = ChangeJson(change);
    json["in_force"] = true;
    context.io.out << JsonLine(json);
    return;
  }
  context.io.out << "policy " << Headline(policy, change) << " at step "
                 << change.version() << "\n";
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

absl::Status Withdrawn() {
  return absl::AbortedError(
      "the change did not take effect: the run has ended, the change was taken "
      "back, or the server was started anew\n`cohortctl status` tells");
}

// The server's values of `settings`: pending, or in force.
Settings AsAccepted(const v1::GetPolicyReply& policy,
                    const Settings& settings) {
  Settings accepted;
  for (const auto& [name, value] : settings) {
    const auto pending = policy.pending().find(name);
    const auto in_force = policy.settings().find(name);
    if (pending != policy.pending().end()) {
      accepted[name] = pending->second;
    } else if (in_force != policy.settings().end()) {
      accepted[name] = in_force->second;
    }
  }
  return accepted;
}

// Errors: Aborted: `change` has values other than the accepted ones.
absl::Status CheckNotReplaced(const v1::PolicyChange& change,
                              const Settings& accepted) {
  for (const auto& [name, value] : accepted) {
    const auto found = change.settings().find(name);
    if (found == change.settings().end() || found->second == value) continue;
    return absl::AbortedError(absl::StrCat(
        "the change was replaced by another one before it took effect: ", name,
        " is ", Printable(found->second), " since step ", change.version(),
        ", not ", Printable(value),
        "\n`cohortctl policy history` lists all changes"));
  }
  return absl::OkStatus();
}

// Waits until the change `wanted` (a policy epoch) is in force, and prints what
// it waits for.
absl::Status AwaitChange(Context& context, int64_t wanted) {
  CtlIo& io = context.io;
  const Instant start = io.clock.Now();
  Instant word_due = start + kFirstWord;
  std::optional<Settings> accepted;
  for (;;) {
    COHORT_ASSIGN_OR_RETURN(const v1::GetPolicyReply policy,
                            context.server.GetPolicy());
    const v1::PolicyChange* change =
        FindChange(policy, wanted, context.settings);
    if (!accepted.has_value()) accepted = AsAccepted(policy, context.settings);
    if (change != nullptr) {
      COHORT_RETURN_IF_ERROR(CheckNotReplaced(*change, *accepted));
      PrintInForce(context, policy, *change);
      return absl::OkStatus();
    }
    if (policy.pending().empty()) return Withdrawn();
    const Instant now = io.clock.Now();
    const std::string reason = Printable(policy.pending_reason());
    constexpr absl::string_view kStays =
        "\nThe change stays asked for; `cohortctl policy get` tells when it is "
        "in force";
    if (now - start >= context.timeout) {
      return absl::DeadlineExceededError(
          absl::StrCat("not in force after ", SecondsText(context.timeout),
                       " (--timeout): ", reason, kStays));
    }
    if (now >= word_due) {
      word_due = now + kNextWord;
      COHORT_ASSIGN_OR_RETURN(const v1::Status status,
                              context.server.GetStatus());
      if (status.ended()) return Withdrawn();
      io.err << "not in force yet after " << SecondsText(now - start) << " of "
             << SecondsText(context.timeout) << " (--timeout): " << reason
             << std::endl;
    }
    if (!io.pause(std::min(kPoll, context.timeout - (now - start)))) {
      return absl::CancelledError(absl::StrCat("interrupted", kStays));
    }
  }
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
               first ? Printable(change.text()) : Headline(policy, change),
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
  // Prevents changing another run that has taken the port meanwhile.
  request.set_run_id(before.run_id());
  request.set_dry_run(context.arguments.Has("dry_run"));
  request.set_author(OperatorName(context.io.environment));
  request.set_reason(context.arguments.Value("reason").value_or(""));
  request.mutable_settings()->insert(context.settings.begin(),
                                     context.settings.end());
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
  } else if (context.arguments.Has("nowait")) {
    PrintAccepted(context, *reply, "asked for: ");
  } else {
    return AwaitChange(context, reply->policy_epoch());
  }
  return absl::OkStatus();
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
  for (const auto& [name, value] : SettingsAfter(policy, epoch)) {
    const auto now = policy.settings().find(name);
    // `auto` became a rule when the workers registered, before any change, and
    // cannot be set any more.
    if (name == "optimizer" && value == "auto") continue;
    if (now != policy.settings().end() && now->second != value) {
      context.settings[name] = value;
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
  flags.push_back({.name = "dry_run",
                   .value = "",
                   .help = "check and report, but change nothing"});
  flags.push_back({.name = "nowait",
                   .value = "",
                   .help = "return before the change is in force"});
  flags.push_back({.name = "reason",
                   .value = "TEXT",
                   .help = "why, for the log and policy history"});
  return flags;
}

}  // namespace

Verb PolicyGetVerb() {
  return {.name = "policy get",
          .summary = "shows the settings in force and the pending change",
          .flags = {{.name = "changed",
                     .value = "",
                     .help = "only settings that differ from their defaults"}},
          .examples = {"cohortctl policy get", "cohortctl policy get --changed",
                       "cohortctl policy get --json"},
          .run = &RunPolicyGet};
}

Verb PolicySetVerb() {
  return {.name = "policy set",
          .summary = "changes settings while the run goes on",
          .flags = ChangeFlags(),
          .takes_settings = true,
          .examples = {"cohortctl policy set --aggregation=async "
                       "--normalization=local --reason='one slow node'",
                       "cohortctl policy set --learning_rate=0.01 --dry_run"},
          .run = &RunPolicySet};
}

Verb PolicyRevertVerb() {
  return {.name = "policy revert",
          .summary = "goes back to the settings after an earlier change",
          .flags = ChangeFlags({{.name = "to",
                                 .value = "N",
                                 .help = "number of the change, from policy "
                                         "history (default: the one before the "
                                         "newest)"}}),
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
