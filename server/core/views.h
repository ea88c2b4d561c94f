#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/evaluation_sums.h"
#include "common/ids.h"
#include "common/measures/staleness_histogram.h"
#include "common/worker_report.h"
#include "server/core/events/effects.h"
#include "server/core/ledger/run_counts.h"
#include "server/core/membership/rank_table.h"
#include "server/core/settings/settings.h"

// The state of a run, for people and tools.
namespace cohort {

// State in numbers and words, for people and tools.
struct StatusView {
  enum class Phase {
    // For workers.
    kWaiting,
    kTraining,
    kEvaluating,
    kCollecting,
    kOver,
  };
  std::string run_id;
  std::string run_name;
  // A sentence.
  std::string state;
  Phase phase = Phase::kWaiting;
  // Ranks that hold the run up now, and for how long the first that waits for
  // them has waited.
  std::vector<Rank> waited_for;
  absl::Duration waiting;
  Version version;
  Attempt attempt;
  int64_t data_epoch = 0;
  // 0: the workers bring their own data.
  int64_t epochs = 0;
  int64_t samples = 0;
  int64_t local_steps = 0;
  // Samples of the whole run; see PlannedSamples.
  int64_t samples_total = 0;
  double learning_rate = 0;
  std::optional<double> train_loss;
  // As in RunLedger.
  std::map<std::string, double> measures;
  // Ranks that train the same batches, and what to do; empty: none.
  std::string data_problem;
  // The newest evaluation at the end of an epoch, with the first kind of
  // statistics.
  std::optional<EvaluationSums> test;
  int32_t workers_live = 0;
  // The number of ranks.
  int32_t workers_expected = 0;
  // MIN of an elastic cohort; 0 if the size is fixed.
  int32_t workers_min = 0;
  bool elastic() const { return workers_min > 0; }
  // Samples of a step of the present workers, or of one push of each.
  int64_t step_samples = 0;
  // The number of workers that training needs.
  int32_t workers_needed() const {
    return elastic() ? workers_min : workers_expected;
  }
  struct Worker {
    Rank rank;
    std::string state;
    // Its activity now, one of kActivityNames.
    absl::string_view activity;
    // The batch-norm call that it waits in, such as "call 0 of bn1"; empty if
    // there is none.
    std::string waits_in;
    Incarnation incarnation;
    std::string description;
    std::string build;
    int64_t batch_size = 0;
    Sequence sequence;
    absl::Duration silent;
    WorkerReport report;
    // Versions made since the one that it computes on, or that its last push
    // went into.
    int64_t lag_versions = 0;
    // Staleness of its last push, if pushes are decided one by one.
    std::optional<int64_t> staleness_versions;
    // Decided in this server process.
    int64_t pushes = 0;
  };
  std::vector<Worker> workers;
  RunCounts counts;
  // How often a rank became vacant, by reason.
  std::map<VacancyReason, int64_t> vacancies;
  // Moments of pushes, and what became of them.
  StatisticsCounts statistics;
  // Pushes that this process decided one by one (bounded, async).
  StalenessCounts staleness;
  bool ended = false;
};

// The policy in words and texts, for people and tools.
struct PolicyView {
  int64_t policy_epoch = 0;
  std::string text;
  SettingValues settings;
  // The change in progress, and whom it waits for.
  SettingValues pending;
  std::string pending_reason;
  // Why nothing that is pending takes effect any more; empty if it does.
  std::string over;
  std::vector<PolicyRecord> history;
};

// All words of StatusView::Worker::activity. "waiting" means for other
// workers; "joining" has not registered its model; "paused" has gradients
// that the server has no room for.
inline constexpr absl::string_view kActivityNames[] = {
    "vacant",     "reconnecting", "joining", "waiting", "computing",
    "evaluating", "collecting",   "paused",  "finished"};

// "waiting", "training", "evaluating", "collecting", "over".
absl::string_view PhaseName(StatusView::Phase phase);

}  // namespace cohort
