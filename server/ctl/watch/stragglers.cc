#include "server/ctl/watch/stragglers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/step_phase.h"

namespace cohort {
namespace {

// Well above the interval of heartbeats.
constexpr int64_t kSilentMsMax = 5'000;
// Smaller differences occur between equally fast processes.
constexpr double kSlowFactor = 1.25;
// Smaller differences in seconds do not matter.
constexpr double kSlowSeconds = 0.02;

bool Waits(const std::string& phase) {
  return phase == StepPhaseName(StepPhase::kWait) ||
         phase == StepPhaseName(StepPhase::kRendezvous);
}

double MedianOfOwn(const v1::Status& status) {
  std::vector<double> own;
  for (const v1::WorkerStatus& worker : status.workers()) {
    if (worker.phase_seconds().empty()) continue;
    own.push_back(StepTimeOf(worker).own);
  }
  if (own.size() < 2) return 0;
  // With an even number, the lower middle one: half of the workers achieve it.
  const auto middle =
      own.begin() + static_cast<ptrdiff_t>((own.size() - 1) / 2);
  std::nth_element(own.begin(), middle, own.end());
  return *middle;
}

std::string WhyLate(const v1::WorkerStatus& worker, double median) {
  const std::string silent =
      SecondsText(absl::Milliseconds(worker.silent_ms()));
  if (worker.state() == "finished") return "";
  if (worker.state() != "live") {
    return worker.incarnation() == 0 ? "not there yet"
                                     : absl::StrCat("away for ", silent);
  }
  if (worker.silent_ms() > kSilentMsMax) {
    return absl::StrCat("silent for ", silent);
  }
  const double own = StepTimeOf(worker).own;
  if (median > 0 && own > kSlowFactor * median && own - median > kSlowSeconds) {
    return absl::StrFormat(
        "slow: %.0f ms of own work a step, half of all: up to %.0f ms",
        1000 * own, 1000 * median);
  }
  return "";
}

}  // namespace

StepTime StepTimeOf(const v1::WorkerStatus& worker) {
  StepTime time;
  for (const auto& [phase, seconds] : worker.phase_seconds()) {
    (Waits(phase) ? time.waiting : time.own) += seconds;
  }
  return time;
}

std::map<int32_t, std::string> Stragglers(const v1::Status& status) {
  const double median = MedianOfOwn(status);
  std::map<int32_t, std::string> late;
  for (const v1::WorkerStatus& worker : status.workers()) {
    std::string why = WhyLate(worker, median);
    if (!why.empty()) late[worker.rank()] = std::move(why);
  }
  return late;
}

}  // namespace cohort
