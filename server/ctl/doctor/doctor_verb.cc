#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/build_info.h"
#include "common/cli/command_line.h"
#include "server/ctl/doctor/check.h"
#include "server/ctl/doctor/folder_checks.h"
#include "server/ctl/doctor/server_checks.h"
#include "server/ctl/json_line.h"
#include "server/ctl/table.h"
#include "server/ctl/verb.h"

namespace cohort {
namespace {

// Shorter than the default timeout, because there are several checks.
constexpr absl::Duration kAnswerMax = absl::Seconds(5);

absl::string_view ResultName(Check::Result result) {
  constexpr absl::string_view kNames[] = {"ok", "warning", "failed", "skipped"};
  return kNames[static_cast<size_t>(result)];
}

bool AnyFailed(const std::vector<Check>& checks) {
  return std::any_of(checks.begin(), checks.end(), [](const Check& check) {
    return check.result == Check::Result::kFailed;
  });
}

void AddServerChecks(Context& context, std::vector<Check>& checks) {
  const std::string& address = context.server.server();
  const absl::Duration timeout = std::min(context.timeout, kAnswerMax);
  checks.push_back(CheckAddress(address, timeout));
  if (AnyFailed(checks)) {
    checks.push_back(Check::Skipped("server", "it is not reached"));
    return;
  }
  AdminClient server(context.server.target(), timeout);
  const absl::Time asked = absl::Now();
  const absl::StatusOr<v1::Status> status = server.GetStatus();
  const absl::Time answered = absl::Now();
  if (!status.ok()) {
    checks.push_back(CheckServer(status.status(), {}));
    return;
  }
  checks.push_back(CheckServer(status.status(), *status));
  checks.push_back(CheckConnection(
      ConnectionOf(context.server.target(), *status), address, answered));
  // Before what follows from it. A run with one server has none.
  if (status->shards_size() > 0) checks.push_back(CheckShards(*status));
  checks.push_back(CheckRun(*status));
  checks.push_back(CheckVersions(BuildText(), *status));
  checks.push_back(CheckClock(*status, asked, answered));
  checks.push_back(CheckWorkers(*status));
  // An ordinary run has none, and a line about it would be noise.
  if (!status->audit_problem().empty()) {
    checks.push_back(CheckRecord(*status));
  }
  if (!status->checkpoint_problem().empty()) {
    checks.push_back(CheckCheckpoints(*status));
  }
  if (!status->data_problem().empty()) checks.push_back(CheckData(*status));
  checks.push_back(CheckOpsPort(
      OpsAddressOf(context.arguments.Value("ops"), address, *status),
      context.server.target().tls, timeout));
}

void AddFolderChecks(const Arguments& arguments, std::vector<Check>& checks) {
  for (const char* flag : {"results_dir", "checkpoint_dir"}) {
    const std::optional<std::string> folder = arguments.Value(flag);
    if (folder.has_value()) checks.push_back(CheckFolder(flag, *folder));
  }
}

// `text` as lines of whole words, of at most `columns` where words allow.
std::vector<std::string> Wrapped(absl::string_view text, size_t columns) {
  std::vector<std::string> lines;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    if (!lines.empty() && lines.back().size() + 1 + word.size() <= columns) {
      absl::StrAppend(&lines.back(), " ", word);
    } else {
      lines.emplace_back(word);
    }
  }
  return lines;
}

// Widths of the table's last column and of sentences on a terminal. Elsewhere
// lines are not wrapped, so that they can be searched.
struct Widths {
  size_t found = std::string::npos / 2;
  size_t sentence = std::string::npos / 2;
};

Widths WidthsFor(const CtlIo& io, const std::vector<Check>& checks) {
  if (!io.terminal) return {};
  const auto columns = static_cast<size_t>(std::max(io.screen().columns, 1));
  size_t name = 0;
  for (const Check& check : checks) name = std::max(name, check.name.size());
  const size_t before = name + ResultName(Check::Result::kSkipped).size() + 4;
  return {.found = columns - std::min(columns, before), .sentence = columns};
}

// The advice of the checks, each piece once and in their order, with the names
// of the checks that it concerns.
std::vector<std::pair<std::string, std::vector<std::string>>> Fixes(
    const std::vector<Check>& checks) {
  std::vector<std::pair<std::string, std::vector<std::string>>> fixes;
  for (const Check& check : checks) {
    if (check.fix.empty()) continue;
    auto same = std::find_if(
        fixes.begin(), fixes.end(),
        [&check](const auto& fix) { return fix.first == check.fix; });
    if (same == fixes.end()) {
      same = fixes.insert(fixes.end(), {check.fix, {}});
    }
    same->second.push_back(check.name);
  }
  return fixes;
}

std::string ChecksText(const std::vector<Check>& checks, const CtlIo& io) {
  const Widths widths = WidthsFor(io, checks);
  Table table({"check", "result", "found"});
  for (const Check& check : checks) {
    std::string name = check.name;
    std::string result(ResultName(check.result));
    for (std::string& line : Wrapped(check.found, widths.found)) {
      table.Add({std::exchange(name, ""), std::exchange(result, ""),
                 std::move(line)});
    }
  }
  std::string text = table.ToString(io.color);
  for (const auto& [fix, names] : Fixes(checks)) {
    const std::string sentence =
        absl::StrCat(absl::StrJoin(names, ", "), ": ", fix);
    absl::StrAppend(&text, "\n",
                    absl::StrJoin(Wrapped(sentence, widths.sentence), "\n"),
                    "\n");
  }
  return text;
}

std::string ChecksJson(const std::vector<Check>& checks) {
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  for (const Check& check : checks) {
    list.push_back({{"check", check.name},
                    {"result", std::string(ResultName(check.result))},
                    {"found", check.found},
                    {"fix", check.fix.empty() ? Json() : Json(check.fix)}});
  }
  return JsonLine({{"ok", !AnyFailed(checks)}, {"checks", list}});
}

absl::Status RunDoctor(Context& context) {
  std::vector<Check> checks;
  AddServerChecks(context, checks);
  AddFolderChecks(context.arguments, checks);
  if (context.json) {
    context.io.out << ChecksJson(checks);
  } else {
    context.io.out << ChecksText(checks, context.io);
  }
  // No error is returned, because the table has already shown every problem.
  context.exit_code = AnyFailed(checks) ? kExitFailure : kExitOk;
  return absl::OkStatus();
}

}  // namespace

Verb DoctorVerb() {
  return {
      .name = "doctor",
      .summary = "finds out why a run does not work, and how to fix it",
      .flags =
          {{"ops", "HOST:PORT",
            "operations port of the server (default: the one that it reports)"},
           {"results_dir", "DIR",
            "check that the server can write results into this folder"},
           {"checkpoint_dir", "DIR",
            "check that the server can write checkpoints into this folder"}},
      .examples = {"cohortctl doctor",
                   "cohortctl doctor --server=10.0.0.1:7070 "
                   "--checkpoint_dir=state"},
      .run = &RunDoctor};
}

}  // namespace cohort
