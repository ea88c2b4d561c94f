#pragma once

#include <vector>

#include "common/ids.h"
#include "server/core/views.h"

namespace cohort {

// The ranks that hold the run up now. Between two pushes of a normal step the
// server waits for workers too; those are left out. An elastic cohort waits for
// no vacant rank, since any worker will do.
std::vector<Rank> WaitedFor(const StatusView& status);

// A live worker whose own work in a step takes much longer than that of half of
// the workers. Waiting for others is not own work.
struct SlowWorker {
  Rank rank;
  double own_seconds = 0;
  // Half of the workers take at most this long.
  double median_seconds = 0;
};
std::vector<SlowWorker> SlowWorkers(const StatusView& status);

}  // namespace cohort
