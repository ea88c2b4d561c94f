#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/formats/trace_file.h"
#include "common/mutex.h"
#include "worker/client/client.h"
#include "worker/metrics/worker_metrics.h"
#include "worker/train/trainer_observer.h"

namespace cohort {

// Carries what trainer and client tell to those who want it: the log's lines
// get run, rank, incarnation and version; heartbeats the phases of the steps
// since the last one; metrics and timeline, where there are any, theirs.
// Thread safety: safe.
class WorkerTelemetry final : public TrainerObserver, public ClientHooks {
 public:
  // Null: none. Must outlive this.
  WorkerTelemetry(WorkerMetrics* metrics, TraceFile* trace)
      : metrics_(metrics), trace_(trace) {}

  // All there are; the first at the beginning.
  static absl::Span<const absl::string_view> StateNames();

  void OnState(TrainerState state) override;
  void OnWeights(Version version) override;
  void OnStep(const StepReport& report) override ABSL_LOCKS_EXCLUDED(mu_);

  void OnJoined(const Membership& membership, bool again) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void OnRetry(absl::string_view method) override;
  std::map<std::string, double> TakePhaseSeconds() override
      ABSL_LOCKS_EXCLUDED(mu_);
  bool WantsServerClock() const override { return trace_ != nullptr; }
  void OnServerClock(absl::Duration offset, absl::Duration error) override;

  // OK once this worker has joined a run.
  absl::Status Ready() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  WorkerMetrics* const metrics_;
  TraceFile* const trace_;

  mutable Mutex mu_;
  bool joined_ ABSL_GUARDED_BY(mu_) = false;
  // Since the last heartbeat.
  PhaseTimes phases_ ABSL_GUARDED_BY(mu_) = {};
  int64_t steps_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace cohort
