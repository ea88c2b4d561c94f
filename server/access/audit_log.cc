#include "server/access/audit_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFileMode = 0600;

// Ids of one server process begin with its start in microseconds: they increase
// over restarts without reading the file.
int64_t FirstId() { return absl::ToUnixMicros(absl::Now()); }

// `run` is empty before the run has an id.
Json Line(absl::string_view event, const std::string& run) {
  Json line = {{"time", absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::Now(),
                                         absl::UTCTimeZone())},
               {"event", std::string(event.data(), event.size())}};
  if (!run.empty()) line["run"] = run;
  return line;
}

std::string TextOf(const Json& line) {
  // Texts come from clients, so bytes that are not UTF-8 are replaced.
  return line.dump(-1, ' ', /*ensure_ascii=*/true,
                   Json::error_handler_t::replace) +
         "\n";
}

// The arguments as JSON, or as text if they are not.
Json ArgumentsOf(const std::string& text) {
  Json arguments = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return arguments.is_discarded() ? Json(text) : arguments;
}

absl::Status WriteAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::FailedPreconditionError(std::strerror(errno));
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  if (fdatasync(fd) != 0)
    return absl::FailedPreconditionError(std::strerror(errno));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::Open(
    const std::string& path, int64_t file_bytes_max) {
  std::unique_ptr<AuditLog> log(new AuditLog(path, file_bytes_max));
  MutexLock lock(log->mu_);
  const absl::Status opened = log->OpenLocked();
  if (opened.ok()) return log;
  return absl::FailedPreconditionError(
      absl::StrCat("--audit_log: ", opened.message()));
}

AuditLog::AuditLog(std::string path, int64_t file_bytes_max)
    : path_(std::move(path)),
      file_bytes_max_(file_bytes_max),
      next_id_(FirstId()) {}

void AuditLog::SetRun(const std::string& run_id) {
  MutexLock lock(mu_);
  run_id_ = run_id;
}

std::string AuditLog::problem() const {
  MutexLock lock(mu_);
  return problem_;
}

absl::StatusOr<int64_t> AuditLog::Intent(const AuditedCall& call) {
  MutexLock lock(mu_);
  const int64_t id = next_id_++;
  Json line = Line("intent", run_id_);
  line["id"] = id;
  line["client"] = call.client;
  line["verb"] = call.verb;
  line["arguments"] = ArgumentsOf(call.arguments);
  line["version"] = call.version;
  const absl::Status written = AppendLocked(TextOf(line));
  if (written.ok()) return id;
  return absl::FailedPreconditionError(absl::StrCat(
      "nothing was changed, because it cannot be recorded: ", written.message(),
      "\nMake room on that disk, or mend the folder's rights; "
      "the server need not be restarted"));
}

absl::Status AuditLog::Outcome(int64_t id, const absl::Status& outcome) {
  MutexLock lock(mu_);
  Json line = Line("outcome", run_id_);
  line["id"] = id;
  line["code"] = absl::StatusCodeToString(outcome.code());
  if (!outcome.ok()) line["message"] = std::string(outcome.message());
  return AppendLocked(TextOf(line));
}

absl::Status AuditLog::Denied(const std::vector<DeniedCalls>& denied) {
  std::string lines;
  MutexLock lock(mu_);
  for (const DeniedCalls& calls : denied) {
    Json line = Line("denied", run_id_);
    line["client"] = calls.client;
    line["target"] = calls.target;
    line["reason"] = std::string(RefusalName(calls.refusal));
    line["count"] = calls.count;
    lines += TextOf(line);
  }
  return AppendLocked(lines);
}

absl::Status AuditLog::OpenLocked() {
  file_ = FileDescriptor(
      open(path_.c_str(),
           O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
           kFileMode));
  struct stat found = {};
  if (!file_.valid() || fstat(file_.get(), &found) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        path_, " cannot be opened for writing: ", std::strerror(errno)));
  }
  if (!S_ISREG(found.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, " is not a regular file"));
  }
  bytes_ = found.st_size;
  return absl::OkStatus();
}

absl::Status AuditLog::AppendLocked(absl::string_view lines) {
  const absl::Status written = TryAppendLocked(lines);
  problem_ = std::string(written.message());
  return written;
}

absl::Status AuditLog::TryAppendLocked(absl::string_view lines) {
  if (!file_.valid()) COHORT_RETURN_IF_ERROR(OpenLocked());
  if (bytes_ >= file_bytes_max_) COHORT_RETURN_IF_ERROR(RotateLocked());
  const absl::Status written = WriteAll(file_.get(), lines);
  if (written.ok()) {
    bytes_ += static_cast<int64_t>(lines.size());
    return written;
  }
  // Half a line would make the next one unreadable.
  if (ftruncate(file_.get(), bytes_) != 0) file_.Close();
  return absl::FailedPreconditionError(absl::StrCat(
      "the audit log ", path_, " cannot be written: ", written.message()));
}

absl::Status AuditLog::RotateLocked() {
  if (std::rename(path_.c_str(), absl::StrCat(path_, ".1").c_str()) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the audit log ", path_, " cannot be renamed: ", std::strerror(errno)));
  }
  file_.Close();
  return OpenLocked();
}

}  // namespace cohort
