#pragma once

#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/cli/progress_line.h"
#include "common/clock.h"
#include "common/formats/tensorboard.h"
#include "common/mutex.h"
#include "common/periodic_task.h"
#include "server/core/coordinator.h"
#include "server/core/events/effects.h"
#include "server/core/settings/options.h"
#include "server/metrics/rate_meter.h"
#include "server/metrics/run_stats.h"
#include "server/records/progress_text.h"

namespace cohort {

struct RecorderOptions {
  // Directory for history.csv, policy.csv, class_iou.csv and measures.csv; none
  // are written if empty.
  std::string results_dir;
  // Directory for TensorBoard's event files; none are written if empty.
  std::string tensorboard_dir;
  // If set, existing files are continued from this version, and their data of
  // later versions is removed. Otherwise they are replaced.
  std::optional<Version> restored;
  // If true, one line is rewritten in place; otherwise a line is printed every
  // 10 s.
  bool terminal = false;
  // Settings in force at the start.
  CoordinatorOptions run;
  // All policies that took effect so far, oldest first; the first record has
  // every setting.
  std::vector<PolicyRecord> policies;
  // How many of them an earlier process of the run recorded.
  size_t policies_before = 0;
};

// Shows the progress of a run and keeps its history.
//
// history.csv has a row for each 50 commits, with means over them, and one for
// each evaluation and kind of moving statistics. The first row of an evaluation
// has means over the epoch that it follows. Columns that do not apply are
// empty. class_iou.csv, created once an evaluation has labels of pixels, has a
// row for each evaluation, kind and class. measures.csv, created once the
// training program sends measures, has a row for each 50 commits and
// measure. policy.csv has a row for the initial
// settings and one for each change. Seconds count the time that processes of
// the run were up; in continued files, from the last remaining row. If an
// evaluation is repeated because it is not in the checkpoint, but the files
// already have it, it gets no second row.
//
// The event files have the same numbers by version: loss, accuracy and mIoU of
// training and test, learning rate, images a second and seconds a step.
//
// Thread safety: safe. The methods called at events only store their arguments.
// The recorder's own thread writes, so that a slow terminal or disk delays no
// caller.
class RunRecorder {
 public:
  // `out` and `clock` must outlive the recorder; `status` is called from its
  // thread, from Begin until Finish.
  // Errors: FailedPrecondition: a file cannot be written.
  static absl::StatusOr<std::unique_ptr<RunRecorder>> Open(
      const RecorderOptions& options, std::ostream& out, const Clock& clock,
      std::function<StatusView()> status);
  ~RunRecorder();

  // Starts printing and writing.
  void Begin();
  void Committed(const CommitRecord& record) ABSL_LOCKS_EXCLUDED(mu_);
  void Evaluated(const EvaluationRecord& record) ABSL_LOCKS_EXCLUDED(mu_);
  void PolicyChanged(const PolicyRecord& record) ABSL_LOCKS_EXCLUDED(mu_);

  // The contents of the files when they were opened; empty unless `restored` is
  // set.
  const EarlierHistory& earlier() const { return earlier_; }

  // Writes the remaining rows and stops. No-op before Begin, or if called
  // again.
  void Finish() ABSL_LOCKS_EXCLUDED(mu_);

  // The newest evaluation of an epoch's end.
  std::optional<EvaluationRecord> last_evaluation() const
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Sums over consecutive commits.
  struct Window {
    int64_t commits = 0;
    int64_t samples = 0;
    double loss_sum = 0;
    double loss_weight = 0;
    double correct = 0;
    int64_t labels = 0;
    // The training program's measures: sums and weights by name.
    std::map<std::string, std::pair<double, double>> measures;
    // The most members of one step.
    int32_t members_max = 0;
    Instant begin;
    CommitRecord last;
  };
  struct Row {
    std::optional<Window> window;
    std::optional<EvaluationRecord> evaluation;
    // The policy in force at that time, in words.
    std::string policy;
    Instant at;
    // Index of the evaluation's result.
    size_t result = 0;
  };
  struct Change {
    PolicyRecord record;
    std::string headline;
    // True if its row is already in the file.
    bool written = false;
    Instant at;
  };

  RunRecorder(const RecorderOptions& options, std::ostream& out,
              const Clock& clock, std::function<StatusView()> status);

  static void Add(const CommitRecord& record, Window& window);
  std::string PathOf(absl::string_view name) const;
  // Returns whether the file is new.
  absl::StatusOr<bool> OpenTable(absl::string_view name,
                                 absl::string_view header,
                                 std::ofstream& file) const;
  absl::Status OpenFiles();
  // Removes rows that are no longer part of the run from existing files, and
  // notes what remains.
  absl::Status ContinueFiles(Version restored);
  absl::Status OpenEvents();
  void EndWindow(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Poll() ABSL_LOCKS_EXCLUDED(mu_);
  void WriteChange(const PolicyRecord& record, std::optional<Instant> at);
  void WriteRow(const Row& row);
  static void AddTrainScalars(const Row& row,
                              std::vector<EventScalar>& scalars);
  void WriteEvents(const Row& row);
  // True if the files have this evaluation from an earlier process of the run.
  bool IsKnown(const Row& row) const;
  absl::Duration Elapsed(Instant at) const {
    return earlier_.elapsed + at - start_;
  }
  // Writes the classes of an evaluation.
  void WriteClasses(const Row& row);
  // Writes the training program's measures of a window.
  void WriteMeasures(const Window& window);
  // Opens a table that is created when it is first needed.
  void OpenWhenNeeded(absl::string_view name, absl::string_view header,
                      std::ofstream& file);
  void PrintEvaluation(const Row& row);
  void PrintChange(const Change& change);
  void PrintProgress(const StatusView& status, Instant now);

  // Fixed after construction.
  const RecorderOptions options_;
  std::ostream& out_;
  const Clock& clock_;
  const std::function<StatusView()> status_;
  const Instant start_;
  const absl::Time wall_start_;
  // The history of earlier processes of the run, as far as the files have it.
  EarlierHistory earlier_;
  // Version and kind of statistics of the evaluations that the files had.
  std::set<std::pair<int64_t, std::string>> known_evaluations_;

  mutable Mutex mu_;
  Window recent_ ABSL_GUARDED_BY(mu_);
  Window epoch_ ABSL_GUARDED_BY(mu_);
  // By version: epochs that have ended and are not evaluated yet.
  std::map<Version, Window> ended_epochs_ ABSL_GUARDED_BY(mu_);
  std::vector<Row> rows_ ABSL_GUARDED_BY(mu_);
  std::vector<Change> changes_ ABSL_GUARDED_BY(mu_);
  // Options as of the newest event.
  CoordinatorOptions run_ ABSL_GUARDED_BY(mu_);
  int64_t policy_epoch_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<EvaluationRecord> last_evaluation_ ABSL_GUARDED_BY(mu_);

  // Used by the recorder's thread, and by Finish after it.
  std::ofstream history_;
  std::ofstream policy_;
  std::ofstream classes_;
  std::ofstream measures_;
  // Null if no event files are written.
  std::unique_ptr<EventFile> events_;
  RateMeter rate_;
  int32_t workers_ = 0;
  ProgressLine line_{out_};
  std::optional<Instant> last_print_;

  // Last: its thread uses everything above.
  std::unique_ptr<PeriodicTask> poller_;
};

}  // namespace cohort
