#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/periodic_task.h"
#include "common/security/tls_files.h"

namespace cohort {

// The newest valid content of a process's TLS files, which are read again every
// second. Files that cannot be used, or are of another identity, are reported
// and change nothing.
// Thread safety: safe.
class TlsWatcher {
 public:
  // An error if the content cannot be used: it is reported, and tried again
  // with the next reading.
  using OnChange = std::function<absl::Status(const TlsContent&)>;
  // Takes one line for people, and whether it reports a fault.
  using OnMessage = std::function<void(bool fault, const std::string&)>;

  // `content` is what `files` held at first. The callbacks run on the watcher's
  // own thread; each may be null.
  TlsWatcher(TlsFiles files, TlsContent content, OnChange on_change,
             OnMessage on_message);
  // Reads no more. Returns after the callback in progress.
  void Stop() { task_.reset(); }

  TlsContent content() const ABSL_LOCKS_EXCLUDED(mu_);
  // When the certificate in use expires; InfiniteFuture without one.
  absl::Time not_after() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Read() ABSL_LOCKS_EXCLUDED(mu_);
  void ReportFault(const std::string& fault) ABSL_LOCKS_EXCLUDED(mu_);
  void Report(bool fault, const std::string& text) const;

  // Fixed after construction.
  const TlsFiles files_;
  const OnChange on_change_;
  const OnMessage on_message_;

  // Used by the watcher's thread only: the fault that the last reading found,
  // the one that was reported and is not over, and whether the end of the
  // certificate was announced.
  std::string fault_;
  std::string reported_fault_;
  bool announced_end_ = false;

  mutable Mutex mu_;
  TlsContent content_ ABSL_GUARDED_BY(mu_);

  // Last: its thread uses everything above.
  std::unique_ptr<PeriodicTask> task_;
};

}  // namespace cohort
