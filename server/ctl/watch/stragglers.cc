#include "server/ctl/watch/stragglers.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/step_phase.h"

namespace cohort {
namespace {

// Well above the interval of heartbeats.
constexpr int64_t kSilentMsMax = 5'000;

bool Waits(const std::string& phase) {
  return phase == StepPhaseName(StepPhase::kWait) ||
         phase == StepPhaseName(StepPhase::kRendezvous);
}

std::string WhyLate(const v1::Status& status, const v1::WorkerStatus& worker) {
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
  for (const v1::SlowWorker& slow : status.slow_workers()) {
    if (slow.rank() != worker.rank()) continue;
    return absl::StrFormat(
        "slow: %.0f ms of own work a step, half of all: up to %.0f ms",
        1000 * slow.own_seconds(), 1000 * slow.median_seconds());
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
  std::map<int32_t, std::string> late;
  for (const v1::WorkerStatus& worker : status.workers()) {
    std::string why = WhyLate(status, worker);
    if (!why.empty()) late[worker.rank()] = std::move(why);
  }
  return late;
}

}  // namespace cohort
