#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/periodic_task.h"
#include "server/metrics/rate_meter.h"
#include "server/metrics/run_figures.h"
#include "server/metrics/run_stats.h"
#include "server/records/run_files.h"
#include "server/run/run_host.h"

namespace cohort {

// Where people and workers reach a server.
struct RunLinks {
  std::string address;
  // Empty for none.
  std::string dashboards_url;
};

// Gathers the figures of a run four times a second. Readers, however frequent,
// therefore take no lock that training needs.
// Thread safety: safe.
class FiguresSource {
 public:
  // All references must outlive the source. `links` must not block.
  FiguresSource(RunHost& run, const RunStats& stats, const RunFiles& files,
                const Clock& clock, std::function<RunLinks()> links);

  // Never null.
  SharedFigures Newest() const ABSL_LOCKS_EXCLUDED(mu_);
  // Gathers them now. For operators and for the last ones of a run; takes locks
  // of training, for a short time.
  SharedFigures Refreshed() ABSL_LOCKS_EXCLUDED(gather_mu_, mu_);

 private:
  SharedFigures Gather() ABSL_EXCLUSIVE_LOCKS_REQUIRED(gather_mu_);

  // Fixed after construction.
  RunHost& run_;
  const RunStats& stats_;
  const RunFiles& files_;
  const Clock& clock_;
  const std::function<RunLinks()> links_;
  const int64_t memory_limit_bytes_;

  Mutex gather_mu_;
  RateMeter rate_ ABSL_GUARDED_BY(gather_mu_);

  mutable Mutex mu_;
  SharedFigures newest_ ABSL_GUARDED_BY(mu_);

  // Last: its thread uses everything above.
  std::unique_ptr<PeriodicTask> task_;
};

}  // namespace cohort
