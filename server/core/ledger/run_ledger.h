#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/measures/staleness_histogram.h"
#include "common/push.h"
#include "server/core/ledger/data_cursor.h"
#include "server/core/ledger/push_history.h"
#include "server/core/ledger/run_counts.h"
#include "server/core/policy/call_order.h"
#include "server/core/policy/same_batches.h"

namespace cohort {

// State that outlives the step driver, and so a live change of aggregation:
// how pushes ended, which samples come next, the clock of schedules, counts.
class RunLedger {
 public:
  explicit RunLedger(int32_t workers)
      : histories_(static_cast<size_t>(workers)) {}

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

  // The number of the next round of the present version. Kept over a change of
  // policy: workers know that the attempts before it are over.
  Attempt next_attempt;
  DataCursor cursor;
  // Samples of all pushes decided so far: the clock of schedules.
  int64_t samples = 0;
  // Local steps of all versions so far.
  int64_t local_steps = 0;
  // Commits in a row that were not finite.
  int32_t nonfinite_in_row = 0;
  // Learnt from repeated attempts.
  CallOrder call_order;

  // ---- for people
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
  // The rate of the first group at the last commit, if the workers sent it.
  std::optional<double> sent_learning_rate;
  void NoteSentRates(const std::vector<double>& rates);
  // Digests of batches that workers read themselves.
  SameBatches same_batches;
  // Its finding; may be empty.
  std::string data_problem;

 private:
  // By rank.
  std::vector<PushHistory> histories_;
};

}  // namespace cohort
