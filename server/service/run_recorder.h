#pragma once

#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/periodic_task.h"
#include "server/core/coordinator.h"
#include "server/core/effects.h"
#include "server/service/progress_text.h"

namespace cohort {

struct RecorderOptions {
  // Where history.csv goes; empty: none is written.
  std::string results_dir;
  // Continues an existing history.csv instead of starting it anew.
  bool append = false;
  // Rewrites one line in place; otherwise a line every 10 s.
  bool terminal = false;
};

// Shows the progress of a run and keeps its history.
//
// history.csv has a row for each 50 commits, with means over them, and one
// for each evaluation and kind of moving statistics, the first of them with
// means over the epoch that it follows; columns that do not apply are empty.
// Seconds count from the start of this process.
//
// Thread safety: safe. Committed and Evaluated only take notes; a thread of
// the recorder's own writes, so that a slow terminal or disk holds up nobody.
class RunRecorder {
 public:
  // `out` and `clock` must outlive the recorder; `status` is called from its
  // thread until Finish.
  // Errors: the file cannot be written.
  static absl::StatusOr<std::unique_ptr<RunRecorder>> Start(
      const RecorderOptions& options, std::ostream& out, const Clock& clock,
      std::function<StatusView()> status);
  ~RunRecorder();

  void Committed(const CommitRecord& record) ABSL_LOCKS_EXCLUDED(mu_);
  void Evaluated(const EvaluationRecord& record) ABSL_LOCKS_EXCLUDED(mu_);

  // Writes what is left and stops. Further calls do nothing.
  void Finish() ABSL_LOCKS_EXCLUDED(mu_);

  // The newest evaluation of an epoch's end.
  std::optional<EvaluationRecord> last_evaluation() const
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Means over consecutive commits, weighted by samples.
  struct Window {
    int64_t commits = 0;
    int64_t samples = 0;
    double loss_sum = 0;
    double accuracy_sum = 0;
    Instant begin;
    CommitRecord last;
  };
  struct Row {
    std::optional<Window> window;
    std::optional<EvaluationRecord> evaluation;
    Instant at;
    // Which of the evaluation's results.
    size_t result = 0;
  };

  RunRecorder(const RecorderOptions& options, std::ostream& out,
              const Clock& clock, std::function<StatusView()> status);

  static void Add(const CommitRecord& record, Window& window);
  void Poll() ABSL_LOCKS_EXCLUDED(mu_);
  void WriteRow(const Row& row, const StatusView& status);
  void PrintEvaluation(const Row& row);
  void PrintProgress(const StatusView& status, Instant now);

  // Fixed after construction.
  const RecorderOptions options_;
  std::ostream& out_;
  const Clock& clock_;
  const std::function<StatusView()> status_;
  const Instant start_;

  mutable Mutex mu_;
  Window recent_ ABSL_GUARDED_BY(mu_);
  Window epoch_ ABSL_GUARDED_BY(mu_);
  // By version: the epochs that ended and are not evaluated yet.
  std::map<Version, Window> ended_epochs_ ABSL_GUARDED_BY(mu_);
  std::vector<Row> rows_ ABSL_GUARDED_BY(mu_);
  std::optional<EvaluationRecord> last_evaluation_ ABSL_GUARDED_BY(mu_);

  // Used by the recorder's thread, and by Finish after it.
  std::ofstream history_;
  RateMeter rate_;
  int32_t workers_ = 0;
  ProgressLine line_;
  std::optional<Instant> last_print_;

  // Last: its thread uses everything above.
  std::unique_ptr<PeriodicTask> poller_;
};

}  // namespace cohort
