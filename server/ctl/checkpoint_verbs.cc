#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/cli/command_line.h"
#include "common/clock.h"
#include "common/formats/checkpoint_files.h"
#include "common/formats/file_system.h"
#include "common/status_macros.h"
#include "server/ctl/byte_count.h"
#include "server/ctl/json_line.h"
#include "server/ctl/table.h"
#include "server/ctl/verb.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr FlagSpec kCheckpointDirFlag = {"dir", "DIR",
                                         "the server's --checkpoint_dir"};

// One directory in a server's --checkpoint_dir, as found.
struct Found {
  enum class Result { kOk, kDamaged, kOtherRelease, kUnreadable, kUnfinished };

  std::string name;
  // Absent if the name does not contain one.
  std::optional<int64_t> version;
  absl::Duration age;
  int64_t bytes = 0;
  Result result = Result::kOk;
  // The fault; empty if there is none.
  std::string problem;
};

absl::string_view ResultName(Found::Result result) {
  constexpr absl::string_view kNames[] = {"ok", "damaged", "other_release",
                                          "unreadable", "unfinished"};
  return kNames[static_cast<size_t>(result)];
}

Found::Result ResultOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return Found::Result::kOk;
    case absl::StatusCode::kFailedPrecondition:
      return Found::Result::kOtherRelease;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kResourceExhausted:
      return Found::Result::kUnreadable;
    default:
      return Found::Result::kDamaged;
  }
}

// Checks whether the manifest is whole and the tensor file has the size that it
// says. Only `checkpoint verify` reads all bytes.
absl::Status LookAt(FileSystem& files, const std::string& path) {
  COHORT_ASSIGN_OR_RETURN(const CheckpointManifest manifest,
                          ReadCheckpointManifest(files, path));
  const std::string tensors = absl::StrCat(path, "/", kCheckpointTensors);
  std::error_code error;
  const uintmax_t bytes = fs::file_size(tensors, error);
  if (error) {
    return absl::DataLossError(absl::StrCat(tensors, ": ", error.message()));
  }
  return CheckTensorFile(
      tensors, manifest.tensors,
      {.bytes = static_cast<int64_t>(bytes), .xxh3 = manifest.tensors.xxh3});
}

// Reads only sizes and age; nullopt if the directory no longer exists.
std::optional<Found> Measure(const std::string& dir, const std::string& name) {
  Found found{.name = name};
  const fs::path path = fs::path(dir) / name;
  std::error_code error;
  const fs::file_time_type written = fs::last_write_time(path, error);
  if (error) return std::nullopt;
  found.age = absl::FromChrono(fs::file_time_type::clock::now() - written);
  for (const auto& file : fs::directory_iterator(path, error)) {
    const uintmax_t bytes = file.file_size(error);
    if (!error) found.bytes += static_cast<int64_t>(bytes);
  }
  return found;
}

// The folder that --dir names.
// Errors: NotFound without --dir; InvalidArgument if it is not a server's.
absl::StatusOr<std::string> FolderOf(const Context& context,
                                     FileSystem& files) {
  const std::optional<std::string> dir = context.arguments.Value("dir");
  if (!dir.has_value()) {
    return absl::NotFoundError(
        "got no --dir, want the server's --checkpoint_dir, such as "
        "--dir=state");
  }
  const auto refuse = [&dir](absl::string_view why, absl::string_view next) {
    return absl::InvalidArgumentError(
        absl::StrCat("--dir: got '", *dir, "', ", why, "\n", next));
  };
  constexpr absl::string_view kNext =
      "Want the folder that the server was given as --checkpoint_dir, on the "
      "machine where it is";
  const absl::StatusOr<std::vector<std::string>> entries = files.List(*dir);
  if (absl::IsNotFound(entries.status())) {
    return refuse("which is not there", kNext);
  }
  if (!entries.ok()) return refuse(entries.status().message(), kNext);
  bool servers = false;
  for (const std::string& entry : *entries) {
    if (entry == kCheckpointManifest) {
      const fs::path whole = fs::absolute(*dir).lexically_normal();
      const fs::path self = whole.has_filename() ? whole : whole.parent_path();
      return refuse("which is one checkpoint, not the folder of them",
                    absl::StrCat("Try --dir=", self.parent_path().string()));
    }
    // A server that has not written a checkpoint yet has only created its lock.
    servers |= entry == "lock" || CheckpointName::Parse(entry).has_value() ||
               absl::StartsWith(entry, kCheckpointTemporary);
  }
  if (!servers) return refuse("which holds no checkpoint", kNext);
  return *dir;
}

// Ordered by age; checkpoints that are being written come last.
absl::StatusOr<std::vector<Found>> FindAll(FileSystem& files,
                                           const std::string& dir) {
  COHORT_ASSIGN_OR_RETURN(const std::vector<CheckpointName> names,
                          ListCheckpoints(files, dir));
  std::vector<Found> all;
  for (const CheckpointName& name : names) {
    // The server may have removed it by now.
    if (std::optional<Found> found = Measure(dir, name.Text())) {
      found->version = name.version;
      all.push_back(*std::move(found));
    }
  }
  COHORT_ASSIGN_OR_RETURN(const std::vector<std::string> entries,
                          files.List(dir));
  for (const std::string& entry : entries) {
    if (!absl::StartsWith(entry, kCheckpointTemporary)) continue;
    if (std::optional<Found> found = Measure(dir, entry)) {
      found->result = Found::Result::kUnfinished;
      found->problem =
          "it is being written, or its server died while writing: the next "
          "checkpoint removes it";
      all.push_back(*std::move(found));
    }
  }
  return all;
}

// Stores the result of `look` for each finished checkpoint, and drops those
// that the server has removed by then.
template <typename Look>
void LookAtEach(const std::string& dir, std::vector<Found>& all, Look look) {
  std::vector<Found> there;
  for (Found& found : all) {
    if (found.result != Found::Result::kUnfinished) {
      const std::string path = absl::StrCat(dir, "/", found.name);
      const absl::Status status = look(path);
      std::error_code error;
      if (!status.ok() && !fs::exists(path, error)) continue;
      found.result = ResultOf(status);
      found.problem = std::string(status.message());
    }
    there.push_back(std::move(found));
  }
  all = std::move(there);
}

Json FoundJson(const Found& found, absl::string_view verdict_name,
               const Json& verdict) {
  Json json = {{"name", found.name},
               {"version", found.version ? Json(*found.version) : Json()},
               {"age_ms", absl::ToInt64Milliseconds(found.age)},
               {"bytes", found.bytes}};
  json[std::string(verdict_name)] = verdict;
  json["problem"] = found.problem.empty() ? Json() : Json(found.problem);
  return json;
}

// Prints one line for each problem, in the order of the table.
void TellProblems(const std::vector<Found>& all, std::ostream& err) {
  for (const Found& found : all) {
    if (!found.problem.empty()) {
      err << found.name << ": " << Printable(found.problem) << std::endl;
    }
  }
}

std::string VersionOf(const Found& found) {
  return found.version ? absl::StrCat(*found.version) : "-";
}

// The checkpoints of `all` that --checkpoint selects, or all that are finished.
absl::StatusOr<std::vector<Found>> Asked(const Context& context,
                                         std::vector<Found> all) {
  std::erase_if(all, [](const Found& f) { return !f.version.has_value(); });
  const std::optional<std::string> text = context.arguments.Value("checkpoint");
  if (!text.has_value() && !all.empty()) return all;
  int64_t version = 0;
  if (text.has_value() && (!absl::SimpleAtoi(*text, &version) || version < 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--checkpoint: got '", *text, "', want a step such as 1200"));
  }
  std::vector<Found> asked = all;
  std::erase_if(asked, [&](const Found& f) { return f.version != version; });
  if (text.has_value() && !asked.empty()) return asked;
  std::string there;
  for (const Found& found : all) {
    absl::StrAppend(&there, there.empty() ? "" : ", ", VersionOf(found));
  }
  return absl::InvalidArgumentError(
      all.empty()
          ? std::string("there is no finished checkpoint to verify\nThe server "
                        "writes one every --checkpoint_every steps and at "
                        "its end; `cohortctl checkpoint save` has it write "
                        "one now")
          : absl::StrCat("--checkpoint: got ", version, ", want one of ",
                         there));
}

// How a server behaves in this situation, in words.
std::string Consequence(const std::vector<Found>& all) {
  const auto whole = [](const Found& f) {
    return f.result == Found::Result::kOk;
  };
  if (all.empty() || whole(all.back())) return "";
  for (auto found = all.rbegin(); found != all.rend(); ++found) {
    if (found->result != Found::Result::kDamaged && !whole(*found)) return "";
    if (whole(*found)) {
      return absl::StrCat(
          "A server with --resume passes what is damaged over and continues "
          "from step ",
          VersionOf(*found));
    }
  }
  return "None is whole: a server with --resume ends with exit code 7";
}

int ExitCodeFor(const std::vector<Found>& all) {
  int code = kExitOk;
  for (const Found& found : all) {
    if (found.result == Found::Result::kDamaged) return kExitBadCheckpoint;
    if (found.result != Found::Result::kOk) code = kExitFailure;
  }
  return code;
}

absl::Status RunCheckpointList(Context& context) {
  FileSystem& files = RealFileSystem();
  COHORT_ASSIGN_OR_RETURN(const std::string dir, FolderOf(context, files));
  COHORT_ASSIGN_OR_RETURN(std::vector<Found> all, FindAll(files, dir));
  LookAtEach(dir, all,
             [&files](const std::string& path) { return LookAt(files, path); });
  if (context.json) {
    Json list = Json::array();
    for (const Found& found : all) {
      list.push_back(
          FoundJson(found, "complete", found.result == Found::Result::kOk));
    }
    context.io.out << JsonLine({{"dir", dir}, {"checkpoints", list}});
    return absl::OkStatus();
  }
  Table table({"checkpoint", "step", "age", "size", "complete"});
  for (const Found& found : all) {
    table.Add({found.name, VersionOf(found), HumanDuration(found.age),
               ByteCountText(found.bytes),
               found.result == Found::Result::kOk ? "yes" : "no"});
  }
  if (all.empty()) {
    context.io.err << dir << ": no checkpoint was written yet" << std::endl;
    return absl::OkStatus();
  }
  context.io.out << table.ToString(context.io.color) << std::flush;
  TellProblems(all, context.io.err);
  return absl::OkStatus();
}

absl::Status RunCheckpointVerify(Context& context) {
  FileSystem& files = RealFileSystem();
  COHORT_ASSIGN_OR_RETURN(const std::string dir, FolderOf(context, files));
  COHORT_ASSIGN_OR_RETURN(std::vector<Found> all, FindAll(files, dir));
  COHORT_ASSIGN_OR_RETURN(all, Asked(context, std::move(all)));
  LookAtEach(dir, all, [&files](const std::string& path) {
    return VerifyCheckpoint(files, path);
  });
  context.exit_code = ExitCodeFor(all);
  if (context.json) {
    Json list = Json::array();
    for (const Found& found : all) {
      list.push_back(
          FoundJson(found, "result", std::string(ResultName(found.result))));
    }
    context.io.out << JsonLine({{"dir", dir},
                                {"ok", context.exit_code == kExitOk},
                                {"checkpoints", list}});
    return absl::OkStatus();
  }
  Table table({"checkpoint", "step", "size", "result"});
  for (const Found& found : all) {
    std::string result(ResultName(found.result));
    if (found.result == Found::Result::kOtherRelease) {
      result = "of another release";
    }
    table.Add({found.name, VersionOf(found), ByteCountText(found.bytes),
               std::move(result)});
  }
  context.io.out << table.ToString(context.io.color) << std::flush;
  TellProblems(all, context.io.err);
  // The result for one selected checkpoint says nothing about the others.
  const std::string next =
      context.arguments.Has("checkpoint") ? "" : Consequence(all);
  if (!next.empty()) context.io.err << next << std::endl;
  return absl::OkStatus();
}

}  // namespace

Verb CheckpointListVerb() {
  return {.name = "checkpoint list",
          .summary = "lists the checkpoints in a folder, without a server",
          .flags = {kCheckpointDirFlag},
          .contacts = Contacts::kNothing,
          .examples = {"cohortctl checkpoint list --dir=state"},
          .run = &RunCheckpointList};
}

Verb CheckpointVerifyVerb() {
  return {.name = "checkpoint verify",
          .summary = "reads every byte of checkpoints and names damaged files",
          .flags = {kCheckpointDirFlag,
                    {"checkpoint", "N",
                     "only the checkpoint of step N (default: all)"}},
          .contacts = Contacts::kNothing,
          .examples = {"cohortctl checkpoint verify --dir=state",
                       "cohortctl checkpoint verify --dir=state "
                       "--checkpoint=1200"},
          .run = &RunCheckpointVerify};
}

}  // namespace cohort
