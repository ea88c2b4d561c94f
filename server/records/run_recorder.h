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
#include "common/clock.h"
#include "common/formats/tensorboard.h"
#include "common/mutex.h"
#include "common/periodic_task.h"
#include "server/core/coordinator.h"
#include "server/core/effects.h"
#include "server/core/options.h"
#include "server/metrics/rate_meter.h"
#include "server/metrics/run_tally.h"
#include "server/records/progress_text.h"

namespace cohort {

struct RecorderOptions {
  // Where history.csv, policy.csv and class_iou.csv go; empty: none are
  // written.
  std::string results_dir;
  // Gets TensorBoard's event files; empty: none are written.
  std::string tensorboard_dir;
  // Set: existing files are continued from this version on, instead of starting
  // anew; what they say of later versions is taken out.
  std::optional<Version> restored;
  // Rewrites one line in place; otherwise a line every 10 s.
  bool terminal = false;
  // Settings in force at the start.
  CoordinatorOptions run;
  // All that took effect so far, oldest first; the first record has every
  // setting.
  std::vector<PolicyRecord> policies;
  // How many of them an earlier process of the run recorded.
  size_t policies_before = 0;
};

// Shows the progress of a run and keeps its history.
//
// history.csv has a row for each 50 commits, with means over them, and one
// for each evaluation and kind of moving statistics, the first of them with
// means over the epoch that it follows; columns that do not apply are empty.
// class_iou.csv, made once an evaluation has labels of pixels, has a row for
// each evaluation, kind and class. policy.csv has a row for the settings that
// the run began with and one for each change. Seconds count the time that
// processes of the run were up: where files are continued, from the last row
// that stays. An evaluation that the files have already, and that is repeated
// because it is not in the checkpoint, has no second row.
//
// The event files have the same numbers by version: loss, accuracy and mIoU of
// training and test, learning rate, images a second and seconds a step.
//
// Thread safety: safe. The methods called at events only take notes; a thread
// of the recorder's own writes, so that a slow terminal or disk holds up
// nobody.
class RunRecorder {
 public:
  // `out` and `clock` must outlive the recorder; `status` is called from its
  // thread, from Begin until Finish.
  // Errors: FailedPrecondition: a file cannot be written.
  static absl::StatusOr<std::unique_ptr<RunRecorder>> Open(
      const RecorderOptions& options, std::ostream& out, const Clock& clock,
      std::function<StatusView()> status);
  ~RunRecorder();

  // Shows and writes from now on.
  void Begin();
  void Committed(const CommitRecord& record) ABSL_LOCKS_EXCLUDED(mu_);
  void Evaluated(const EvaluationRecord& record) ABSL_LOCKS_EXCLUDED(mu_);
  void PolicyChanged(const PolicyRecord& record) ABSL_LOCKS_EXCLUDED(mu_);

  // What the files held when they were opened; nothing unless `restored`.
  const EarlierCourse& earlier() const { return earlier_; }

  // Writes what is left and stops. Does nothing before Begin, or a second time.
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
    Instant begin;
    CommitRecord last;
  };
  struct Row {
    std::optional<Window> window;
    std::optional<EvaluationRecord> evaluation;
    // In force then, in words.
    std::string policy;
    Instant at;
    // Which of the evaluation's results.
    size_t result = 0;
  };
  struct Change {
    PolicyRecord record;
    std::string headline;
    // Its row is in the file.
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
  // Takes out of existing files what is not part of the run any more, and notes
  // what they hold.
  absl::Status ContinueFiles(Version restored);
  absl::Status OpenEvents();
  void EndWindow(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Poll() ABSL_LOCKS_EXCLUDED(mu_);
  void WriteChange(const PolicyRecord& record, std::optional<Instant> at);
  void WriteRow(const Row& row);
  static void AddTrainScalars(const Row& row,
                              std::vector<EventScalar>& scalars);
  void WriteEvents(const Row& row);
  // The files have this evaluation from an earlier process of the run.
  bool IsKnown(const Row& row) const;
  absl::Duration Elapsed(Instant at) const {
    return earlier_.elapsed + at - start_;
  }
  // Of an evaluation.
  void WriteClasses(const Row& row);
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
  // Of earlier processes of the run, as far as the files tell.
  EarlierCourse earlier_;
  // Version and kind of statistics of the evaluations that the files had.
  std::set<std::pair<int64_t, std::string>> known_evaluations_;

  mutable Mutex mu_;
  Window recent_ ABSL_GUARDED_BY(mu_);
  Window epoch_ ABSL_GUARDED_BY(mu_);
  // By version: the epochs that ended and are not evaluated yet.
  std::map<Version, Window> ended_epochs_ ABSL_GUARDED_BY(mu_);
  std::vector<Row> rows_ ABSL_GUARDED_BY(mu_);
  std::vector<Change> changes_ ABSL_GUARDED_BY(mu_);
  // As of the newest event.
  CoordinatorOptions run_ ABSL_GUARDED_BY(mu_);
  int64_t policy_epoch_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<EvaluationRecord> last_evaluation_ ABSL_GUARDED_BY(mu_);

  // Used by the recorder's thread, and by Finish after it.
  std::ofstream history_;
  std::ofstream policy_;
  // It has a column for the run's name: one of an older release has none.
  bool policy_named_ = false;
  std::ofstream classes_;
  // Null: none are written.
  std::unique_ptr<EventFile> events_;
  RateMeter rate_;
  int32_t workers_ = 0;
  ProgressLine line_;
  std::optional<Instant> last_print_;

  // Last: its thread uses everything above.
  std::unique_ptr<PeriodicTask> poller_;
};

}  // namespace cohort
