#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/ids.h"
#include "common/measures/staleness_histogram.h"
#include "server/core/events/effects.h"
#include "server/core/ledger/data_cursor.h"
#include "server/core/ledger/push_history.h"
#include "server/core/ledger/run_counts.h"
#include "server/core/policy/call_order.h"
#include "server/core/policy/same_batches.h"

namespace cohort {

// State that outlives the step driver, and so a live change of aggregation:
// how pushes ended, which samples come next, the clock of schedules, counts,
// and how the run ends.
class RunLedger {
 public:
  explicit RunLedger(int32_t workers)
      : histories_(static_cast<size_t>(workers)) {}

  // ---- pushes
  // `rank` must be one of the cohort.
  PushHistory& pushes_of(Rank rank) {
    return histories_[static_cast<size_t>(rank.value())];
  }
  const PushHistory& pushes_of(Rank rank) const {
    return histories_[static_cast<size_t>(rank.value())];
  }
  // The pushes of ranks beyond `workers` are forgotten.
  void Resize(int32_t workers) {
    histories_.resize(static_cast<size_t>(workers));
  }

  // ---- attempts
  // The number of the next round of the present version. Kept over a change of
  // policy: workers know that the attempts before it are over.
  Attempt next_attempt() const { return next_attempt_; }
  void BeginAttempts() { next_attempt_ = Attempt(0); }
  void EndAttempt(Attempt attempt) { next_attempt_ = attempt.Next(); }

  // ---- data
  DataCursor& cursor() { return cursor_; }
  const DataCursor& cursor() const { return cursor_; }
  // Samples of all pushes decided so far: the clock of schedules.
  int64_t samples() const { return samples_; }
  void AddSamples(int64_t samples) { samples_ += samples; }

  // ---- numbers that are not finite
  // Commits in a row that were not.
  int32_t nonfinite_in_row() const { return nonfinite_in_row_; }
  void CountNonfinite() { ++nonfinite_in_row_; }
  void CountFinite() { nonfinite_in_row_ = 0; }

  // ---- begin and end
  void Start() { started_ = true; }
  // Training has begun in this life of the server.
  bool started() const { return started_; }
  // The run is to end at the next commit.
  void Drain(const std::string& reason) {
    draining_ = true;
    drain_reason_ = reason;
  }
  bool draining() const { return draining_; }
  const std::string& drain_reason() const { return drain_reason_; }
  void End(RunOutcome outcome, const std::string& reason);
  bool ended() const { return ended_; }
  // With several shards two states are on disk before anybody acts on them.
  enum class Milestone { kStart, kEnd };
  // Its checkpoint was asked for, or is on disk.
  enum class Storing { kNo, kAsked, kStored };
  Storing storing(Milestone milestone) const {
    return storing_[static_cast<size_t>(milestone)];
  }
  void Note(Milestone milestone, Storing storing) {
    storing_[static_cast<size_t>(milestone)] = storing;
  }
  // What was asked for is on disk.
  void NoteStored();
  // Errors: FailedPrecondition with the reason of the end.
  absl::Status CheckNotOver() const;
  const std::string& end_reason() const { return end_reason_; }
  // The run has ended, but is not done: a server that is started again may go
  // on.
  bool broke_off() const { return broke_off_; }
  // The run has ended because of an error.
  bool failed() const { return failed_; }

  // ---- batch norm
  // Learnt from repeated attempts.
  CallOrder call_order;

  // ---- counts, for people
  RunCounts counts;
  std::map<VacancyReason, int64_t> vacancies;
  StatisticsCounts statistics_counts;
  StalenessCounts staleness;
  std::optional<double> train_loss;
  // Means of the training program's measures at the last commit that had each,
  // by name; names beyond kMeasureNamesMax are left out.
  std::map<std::string, double> measures;
  static constexpr size_t kMeasureNamesMax = 64;
  void NoteMeasures(const std::vector<Measure>& noted);
  // With RunPlan::rates_by_workers: the rate of the first group at the last
  // commit.
  double sent_learning_rate = 0;
  // Digests of batches that workers read themselves.
  SameBatches same_batches;
  // Its finding; may be empty.
  std::string data_problem;

 private:
  // By rank.
  std::vector<PushHistory> histories_;
  Attempt next_attempt_;
  DataCursor cursor_;
  int64_t samples_ = 0;
  int32_t nonfinite_in_row_ = 0;
  std::array<Storing, 2> storing_ = {Storing::kNo, Storing::kNo};
  bool started_ = false;
  bool draining_ = false;
  std::string drain_reason_;
  bool ended_ = false;
  std::string end_reason_;
  bool broke_off_ = false;
  bool failed_ = false;
};

}  // namespace cohort
