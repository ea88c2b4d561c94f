#include "server/ctl/study/study_folder.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/byte_rope.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFolderMode = 0755;
constexpr char kStudyFile[] = "study.json";
constexpr char kRuns[] = "runs";
constexpr char kRunFile[] = "run.json";

// Replaces bytes that are not UTF-8, because a flag with them must not throw.
std::string Dump(const Json& json) {
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json ToJson(const StudyFlags& flags) {
  return {{"server_flags", flags.server},
          {"worker_flags", flags.worker},
          {"reference_images", flags.reference_images}};
}

absl::Status Differ(const std::string& path, absl::string_view what,
                    const std::string& got, const std::string& want) {
  return absl::FailedPreconditionError(absl::StrCat(
      path, " holds runs with other ", what, ": got '", got, "', want '", want,
      "'\nrepeat the study with those, or give it another folder with --out"));
}

absl::Status CompareFlags(const std::string& path, const StudyFlags& got,
                          const Json& held) {
  const std::string server = absl::StrJoin(got.server, " ");
  const std::string worker = absl::StrJoin(got.worker, " ");
  try {
    const std::string held_server = absl::StrJoin(
        held.at("server_flags").get<std::vector<std::string>>(), " ");
    const std::string held_worker = absl::StrJoin(
        held.at("worker_flags").get<std::vector<std::string>>(), " ");
    const auto images = held.at("reference_images").get<int64_t>();
    if (server != held_server) {
      return Differ(path, "server flags", server, held_server);
    }
    if (worker != held_worker) {
      return Differ(path, "worker flags", worker, held_worker);
    }
    if (got.reference_images != images) {
      return Differ(path, "--reference_images",
                    absl::StrCat(got.reference_images), absl::StrCat(images));
    }
  } catch (const Json::exception& e) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, "/", kStudyFile, " is damaged: ", e.what(),
                     "\ngive the study another folder with --out"));
  }
  return absl::OkStatus();
}

}  // namespace

StudyFolder::StudyFolder(FileSystem& files, const std::string& path)
    : files_(&files), path_(path) {}

absl::StatusOr<StudyFolder> StudyFolder::Open(FileSystem& files,
                                              const std::string& path,
                                              const StudyFlags& flags) {
  StudyFolder folder(files, path);
  std::error_code error;
  std::filesystem::create_directories(absl::StrCat(path, "/", kRuns), error);
  if (error) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--out: cannot make the folder ", path, ": ", error.message()));
  }
  absl::StatusOr<std::unique_ptr<StateLock>> lock = StateLock::Acquire(path);
  if (!lock.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat(lock.status().message(),
                     "\ngive this study another folder with --out"));
  }
  folder.lock_ = *std::move(lock);
  COHORT_RETURN_IF_ERROR(folder.CheckFlags(flags));
  return folder;
}

absl::Status StudyFolder::CheckFlags(const StudyFlags& flags) {
  COHORT_ASSIGN_OR_RETURN(const std::optional<std::string> held,
                          Read(kStudyFile));
  if (!held.has_value()) return Write(kStudyFile, Dump(ToJson(flags)));
  return CompareFlags(path_, flags,
                      Json::parse(*held, nullptr, /*allow_exceptions=*/false));
}

absl::StatusOr<std::optional<std::string>> StudyFolder::Read(
    const std::string& name) const {
  const absl::StatusOr<ByteRope> content =
      files_->ReadFile(absl::StrCat(path_, "/", name), kAnyFileSize);
  if (absl::IsNotFound(content.status())) return std::nullopt;
  COHORT_RETURN_IF_ERROR(content.status());
  return content->ToString();
}

std::string StudyFolder::RunPath(const StudyRun& run) const {
  return absl::StrCat(path_, "/", kRuns, "/", run.Name());
}

absl::Status StudyFolder::Prepare(const StudyRun& run) {
  const std::string path = RunPath(run);
  COHORT_RETURN_IF_ERROR(files_->RemoveAll(path));
  return files_->MakeDirectory(path, kFolderMode);
}

absl::Status StudyFolder::MarkDone(const StudyRun& run) {
  return Write(absl::StrCat(kRuns, "/", run.Name(), "/", kRunFile),
               Dump({{"kinds", run.kinds}}));
}

absl::Status StudyFolder::ForgetFlags() {
  return files_->RemoveAll(absl::StrCat(path_, "/", kStudyFile));
}

absl::StatusOr<bool> StudyFolder::IsDone(const StudyRun& run) const {
  COHORT_ASSIGN_OR_RETURN(
      const std::optional<std::string> text,
      Read(absl::StrCat(kRuns, "/", run.Name(), "/", kRunFile)));
  if (!text.has_value()) return false;
  const Json json = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("kinds")) return false;
  const Json& held = json["kinds"];
  return std::all_of(
      run.kinds.begin(), run.kinds.end(), [&held](const std::string& kind) {
        return std::find(held.begin(), held.end(), kind) != held.end();
      });
}

absl::StatusOr<std::vector<std::string>> StudyFolder::DoneNames() const {
  COHORT_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                          files_->List(absl::StrCat(path_, "/", kRuns)));
  std::vector<std::string> done;
  for (const std::string& name : names) {
    COHORT_ASSIGN_OR_RETURN(
        const std::optional<std::string> text,
        Read(absl::StrCat(kRuns, "/", name, "/", kRunFile)));
    if (text.has_value()) done.push_back(name);
  }
  return done;
}

absl::Status StudyFolder::Write(const std::string& name,
                                const std::string& content) {
  return WriteFileAtomically(*files_, absl::StrCat(path_, "/", name),
                             kPublicFileMode, content);
}

}  // namespace cohort
