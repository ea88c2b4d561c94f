#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "cohort/v1/admin.pb.h"
#include "common/clock.h"
#include "common/formats/file_system.h"
#include "common/status_macros.h"
#include "server/ctl/json_line.h"
#include "server/ctl/saved_run.h"
#include "server/ctl/table.h"
#include "server/ctl/verb.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr absl::string_view kFolderDefault = "results";

// The folders with a saved run among `dir` and, level by level, the folders in
// it; a folder with a run is not searched further.
void FindRunFolders(const fs::path& dir, int levels,
                    std::vector<std::string>& found) {
  std::error_code error;
  if (fs::exists(dir / std::string(kSavedStatus), error)) {
    found.push_back(dir.string());
    return;
  }
  if (levels == 0) return;
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    if (entry.is_directory(error)) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  for (const fs::path& folder : folders) {
    FindRunFolders(folder, levels - 1, found);
  }
}

// Runs to compare, and problems with folders that could not be read.
struct Found {
  std::vector<SavedRun> runs;
  std::vector<std::string> problems;
};

// Errors: FailedPrecondition: no such folder, or none contains a run.
absl::StatusOr<Found> FindRuns(FileSystem& files,
                               std::vector<std::string> dirs) {
  if (dirs.empty()) dirs.emplace_back(kFolderDefault);
  Found found;
  std::vector<std::string> folders;
  for (const std::string& dir : dirs) {
    std::error_code error;
    if (!fs::is_directory(dir, error)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "got '", dir, "', which is no folder\nWant folders that servers ",
          "were given as --results_dir, or a folder of them"));
    }
    // Results of several studies: results/STUDY/runs/RUN.
    FindRunFolders(dir, 3, folders);
  }
  for (const std::string& folder : folders) {
    absl::StatusOr<SavedRun> run = ReadSavedRun(files, folder);
    if (run.ok()) {
      found.runs.push_back(*std::move(run));
    } else {
      found.problems.push_back(std::string(run.status().message()));
    }
  }
  if (folders.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no folder in ", absl::StrJoin(dirs, ", "), " contains ", kSavedStatus,
        "\nA server with --results_dir writes it after a minute and at the ",
        "end of a run"));
  }
  return found;
}

// Settings whose values are not the same in all runs.
std::vector<std::string> DifferingSettings(const std::vector<SavedRun>& runs) {
  std::map<std::string, std::set<std::string>> values;
  for (const SavedRun& run : runs) {
    for (const auto& [name, value] : run.status.policy().settings()) {
      values[name].insert(value);
    }
  }
  std::vector<std::string> names;
  for (const auto& setting : values) {
    const std::string& name = setting.first;
    const auto has = [&name](const SavedRun& run) {
      return run.status.policy().settings().contains(name);
    };
    if (setting.second.size() > 1 ||
        !std::all_of(runs.begin(), runs.end(), has)) {
      names.push_back(name);
    }
  }
  return names;
}

using Order = bool (*)(const SavedRun& a, const SavedRun& b);

// Errors: InvalidArgument naming --sort.
absl::StatusOr<Order> OrderOf(const std::string& name) {
  if (name == "time") {
    return +[](const SavedRun& a, const SavedRun& b) {
      return a.status.server_unix_us() < b.status.server_unix_us();
    };
  }
  if (name == "name") {
    return +[](const SavedRun& a, const SavedRun& b) {
      return a.name() < b.name();
    };
  }
  // The best run comes first; a run without the measure comes last.
  if (name == "test") {
    return +[](const SavedRun& a, const SavedRun& b) {
      return a.test().value_or(-1) > b.test().value_or(-1);
    };
  }
  if (name == "speed") {
    return +[](const SavedRun& a, const SavedRun& b) {
      return a.images_per_second() > b.images_per_second();
    };
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--sort: got '", name, "', want one of time, name, test, speed"));
}

std::string TestText(const SavedRun& run) {
  if (!run.test().has_value()) return "";
  return absl::StrFormat("%.1f %% %s", 100 * *run.test(),
                         run.status.has_test_miou() ? "mIoU" : "accuracy");
}

Json RunJson(const SavedRun& run) {
  const v1::Status& status = run.status;
  const v1::GetPolicyReply& policy = status.policy();
  const std::optional<double> test = run.test();
  return {
      {"dir", run.dir},
      {"run", status.run_id()},
      {"run_name", run.name()},
      {"written_unix_ms", status.server_unix_us() / 1000},
      {"ended", status.ended()},
      {"state", status.state()},
      {"version", status.version()},
      {"samples", status.samples()},
      {"samples_total", status.samples_total()},
      {"elapsed_ms", static_cast<int64_t>(run.seconds() * 1000)},
      {"samples_per_second", run.images_per_second()},
      {"train_loss",
       status.has_train_loss() ? Json(status.train_loss()) : Json()},
      {"test", test.has_value() ? Json(*test) : Json()},
      {"test_measure", status.has_test_miou() ? "mean_iou" : "accuracy"},
      {"policy", policy.text()},
      {"settings", std::map<std::string, std::string>(
                       policy.settings().begin(), policy.settings().end())}};
}

void PrintTable(const std::vector<SavedRun>& runs, const CtlIo& io) {
  Table table({"run", "state", "steps", "train loss", "test", "time",
               "images/s", "policy"});
  for (const SavedRun& run : runs) {
    const v1::Status& status = run.status;
    table.Add(
        {Printable(run.name()), run.state(), absl::StrCat(status.version()),
         status.has_train_loss() ? absl::StrFormat("%.4f", status.train_loss())
                                 : "",
         TestText(run), HumanDuration(absl::Seconds(run.seconds())),
         absl::StrFormat("%.0f", run.images_per_second()),
         Printable(status.policy().text())});
  }
  io.out << table.ToString(io.color);
  const std::vector<std::string> differing = DifferingSettings(runs);
  if (runs.size() < 2 || differing.empty()) return;
  std::vector<std::string> header = {"setting"};
  for (const SavedRun& run : runs) header.push_back(Printable(run.name()));
  Table settings(std::move(header));
  for (const std::string& name : differing) {
    std::vector<std::string> row = {Printable(name)};
    for (const SavedRun& run : runs) {
      const auto& set = run.status.policy().settings();
      const auto found = set.find(name);
      row.push_back(found == set.end() ? "" : Printable(found->second));
    }
    settings.Add(std::move(row));
  }
  io.out << "\nSettings that differ\n" << settings.ToString(io.color);
}

absl::Status RunRuns(Context& context) {
  COHORT_ASSIGN_OR_RETURN(
      const Order before,
      OrderOf(context.arguments.Value("sort").value_or("time")));
  COHORT_ASSIGN_OR_RETURN(
      Found found,
      FindRuns(RealFileSystem(), {context.words.begin(), context.words.end()}));
  std::stable_sort(found.runs.begin(), found.runs.end(), before);
  for (const std::string& problem : found.problems) {
    context.io.err << context.io.program << ": skipped: " << Printable(problem)
                   << '\n';
  }
  if (!found.problems.empty()) context.exit_code = 1;
  if (context.json) {
    Json runs = Json::array();
    for (const SavedRun& run : found.runs) runs.push_back(RunJson(run));
    context.io.out << JsonLine({{"runs", std::move(runs)}});
  } else {
    PrintTable(found.runs, context.io);
  }
  return absl::OkStatus();
}

}  // namespace

Verb RunsVerb() {
  return {.name = "runs",
          .summary = "compares runs by their results folders, without a server",
          .words = "[DIR...]",
          .flags = {{"sort", "KEY", "time (default), name, test or speed"}},
          .contacts = Contacts::kNothing,
          .examples = {"cohortctl runs", "cohortctl runs results --sort=test"},
          .run = &RunRuns};
}

}  // namespace cohort
