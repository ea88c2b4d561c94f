// A clock, a listener and options for a shard, without gRPC.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "server/core/events/effects.h"
#include "server/core/settings/options.h"
#include "server/run/run_host.h"

namespace cohort {

class MovedClock final : public Clock {
 public:
  Instant Now() const override {
    MutexLock lock(mu_);
    return now_;
  }
  void Advance(absl::Duration time) {
    MutexLock lock(mu_);
    now_ += time;
  }

 private:
  mutable Mutex mu_;
  Instant now_ ABSL_GUARDED_BY(mu_) = absl::Seconds(1);
};

class SilentListener : public RunListener {
 public:
  void OnCommitted(const CommitRecord&, const CommitObservation&) override {}
  void OnPolicyChanged(const PolicyRecord&, std::optional<RunState>) override {}
  void OnEvaluated(const EvaluationRecord&) override {}
  void OnLogged(const effect::Log&) override {}
  void OnCheckpoint(RunState) override {}
  void OnMilestone(RunState) override {}
  void OnChangedBeforeStart() override {}
  void OnEnded(const effect::RunEnded&, const SharedSnapshot&) override {}
  void OnFolded(absl::Duration) override {}
  void OnDrift(const std::vector<LayerDrift>&) override {}
};

// A single worker never waits for another.
inline RunHostOptions TinyRunHostOptions(int32_t workers = 1) {
  RunHostOptions options;
  options.coordinator.workers = workers;
  options.coordinator.epochs = 1;
  options.coordinator.optimizer = {.kind = OptimizerKind::kSgd,
                                   .learning_rate = 0.5,
                                   .weight_decay = 0,
                                   .schedule = ScheduleKind::kConstant};
  options.coordinator.run_id = "run";
  options.coordinator.first_incarnation = Incarnation(1);
  return options;
}

}  // namespace cohort
