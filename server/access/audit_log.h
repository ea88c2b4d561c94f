#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/file_descriptor.h"
#include "common/mutex.h"
#include "server/access/access_control.h"

namespace cohort {

// A call that changes the run.
struct AuditedCall {
  // The caller's identity, or its address without encryption.
  std::string client;
  // Such as "SetPolicy".
  std::string verb;
  // The request as JSON.
  std::string arguments;
  // The version of the weights at that moment.
  int64_t version = 0;
};

// A file of JSON lines, one before each call that changes the run (event
// "intent") and one with the same id after it (event "outcome"), and lines of
// denied calls (event "denied"). Lines are durable before the call runs. At
// 64 MiB the file becomes FILE.1 and a new one begins.
// Thread safety: safe.
class AuditLog {
 public:
  // Appends to `path`; the file is created with mode 0600.
  // Errors: FailedPrecondition naming --audit_log and the reason.
  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(
      const std::string& path, int64_t file_bytes_max = kFileBytesMax);

  // The run's id, which all lines have from now on.
  void SetRun(const std::string& run_id) ABSL_LOCKS_EXCLUDED(mu_);
  // Why the last line could not be written; empty if it was.
  std::string problem() const ABSL_LOCKS_EXCLUDED(mu_);

  // Writes the intent. Returns its id, which increases.
  // Errors: FailedPrecondition: the line is not durable, so the call must be
  //   refused until the file can be written again. It is not Unavailable, on
  //   which clients would try again by themselves.
  absl::StatusOr<int64_t> Intent(const AuditedCall& call)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Errors: FailedPrecondition: the line is not durable.
  absl::Status Outcome(int64_t id, const absl::Status& outcome)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Denied(const std::vector<DeniedCalls>& denied)
      ABSL_LOCKS_EXCLUDED(mu_);

  static constexpr int64_t kFileBytesMax = int64_t{64} << 20;

 private:
  AuditLog(std::string path, int64_t file_bytes_max);

  absl::Status OpenLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // All of `lines` or nothing. Keeps the problem.
  absl::Status AppendLocked(absl::string_view lines)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status TryAppendLocked(absl::string_view lines)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status RotateLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string path_;
  const int64_t file_bytes_max_;

  // Held while a line is written: lines are few, and their order is that of the
  // calls.
  mutable Mutex mu_;
  std::string run_id_ ABSL_GUARDED_BY(mu_);
  std::string problem_ ABSL_GUARDED_BY(mu_);
  FileDescriptor file_ ABSL_GUARDED_BY(mu_);
  int64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t next_id_ ABSL_GUARDED_BY(mu_) = 1;
};

}  // namespace cohort
