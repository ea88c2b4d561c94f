#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/formats/file_system.h"
#include "common/mutex.h"
#include "common/periodic_task.h"
#include "server/ops/figures_source.h"

namespace cohort {

// Keeps report.html, the live page as one file, and status.json, its numbers,
// in a results folder. Both are rewritten once a minute, so that a run whose
// server was killed leaves them as well.
// Thread safety: safe.
class ReportWriter {
 public:
  // `files` and `figures` must outlive the writer.
  ReportWriter(FileSystem& files, FiguresSource& figures, std::string dir);

  // Writes both with the figures as they are now.
  // Errors: those of WriteFileAtomically.
  absl::Status Write() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  FileSystem& files_;
  FiguresSource& figures_;
  const std::string dir_;

  // Held while the files are written.
  Mutex mu_;

  // Last: its thread uses everything above.
  std::unique_ptr<PeriodicTask> task_;
};

}  // namespace cohort
