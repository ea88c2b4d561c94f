#include "server/status/hold_ups.h"

#include <algorithm>

#include "common/step_phase.h"

namespace cohort {
namespace {

// Smaller differences occur between equally fast processes.
constexpr double kSlowFactor = 1.25;
// Smaller differences in seconds do not matter.
constexpr double kSlowSeconds = 0.02;

double OwnSeconds(const StatusView::Worker& worker) {
  double own = 0;
  for (const auto& [phase, seconds] : worker.report.phases) {
    const bool waits = phase == StepPhaseName(StepPhase::kWait) ||
                       phase == StepPhaseName(StepPhase::kRendezvous);
    if (!waits) own += seconds;
  }
  return own;
}

}  // namespace

std::vector<Rank> WaitedFor(const StatusView& status) {
  if (status.ended || status.phase != StatusView::Phase::kWaiting) return {};
  std::vector<Rank> ranks = status.waited_for;
  for (const StatusView::Worker& worker : status.workers) {
    const bool there =
        worker.activity != "vacant" && worker.activity != "reconnecting";
    if (status.elastic() && !there) std::erase(ranks, worker.rank);
  }
  return ranks;
}

std::vector<SlowWorker> SlowWorkers(const StatusView& status) {
  std::vector<SlowWorker> workers;
  std::vector<double> own;
  for (const StatusView::Worker& worker : status.workers) {
    if (worker.report.phases.empty()) continue;
    own.push_back(OwnSeconds(worker));
    if (worker.state != "live") continue;
    workers.push_back({.rank = worker.rank, .own_seconds = own.back()});
  }
  if (own.size() < 2) return {};
  // With an even number, the lower middle one: half of the workers achieve it.
  const auto middle =
      own.begin() + static_cast<ptrdiff_t>((own.size() - 1) / 2);
  std::nth_element(own.begin(), middle, own.end());
  std::erase_if(workers, [median = *middle](SlowWorker& worker) {
    worker.median_seconds = median;
    return median <= 0 || worker.own_seconds <= kSlowFactor * median ||
           worker.own_seconds - median <= kSlowSeconds;
  });
  return workers;
}

}  // namespace cohort
