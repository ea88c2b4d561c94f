#pragma once

#include <cstdint>
#include <deque>
#include <utility>

#include "common/clock.h"
#include "server/core/views.h"
#include "server/metrics/run_figures.h"

namespace cohort {

// True while nothing is trained: the run is over, evaluates, or waits for a
// worker that is absent. Waiting for a slow worker counts as training.
bool IsPaused(const StatusView& status);

// Samples a second over the last 10 s in which the run was not paused.
class RateMeter {
 public:
  void Add(Instant now, const StatusView& status);
  // 0 until two points are known. During a pause, the rate before it.
  double per_second() const;
  // 0 during a pause.
  double now_per_second() const { return paused_ ? 0 : per_second(); }

 private:
  std::deque<std::pair<Instant, int64_t>> points_;
  bool paused_ = false;
  // The rate before the last pause.
  double before_ = 0;
};

// Sets the rate and, if it can be estimated, the time left.
void AddRate(const RateMeter& rate, RunFigures& figures);

}  // namespace cohort
