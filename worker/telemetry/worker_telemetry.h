#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/formats/trace_file.h"
#include "common/mutex.h"
#include "common/ops/process_collector.h"
#include "worker/client/client.h"
#include "worker/metrics/worker_metrics.h"
#include "worker/telemetry/trainer_observer.h"

namespace cohort {

// Distributes the events of trainer and client. The log's lines get run, rank,
// incarnation and version. Heartbeats get the phases of the steps since the
// last one. Metrics and timeline, if present, get their share.
// Thread safety: safe.
class WorkerTelemetry final : public TrainerObserver, public ClientHooks {
 public:
  // Both must outlive this object. May be null.
  WorkerTelemetry(WorkerMetrics* metrics, TraceFile* trace)
      : metrics_(metrics), trace_(trace) {}

  // All states; a worker starts in the first.
  static absl::Span<const absl::string_view> StateNames();

  void OnState(TrainerState state) override;
  void OnWeights(Version version) override;
  void OnStep(const StepReport& report) override ABSL_LOCKS_EXCLUDED(mu_);

  void OnJoined(const Membership& membership, bool again) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void OnRetry(absl::string_view method) override;
  void OnObstacle(const std::string& text) override;
  WorkerReport TakeReport() override ABSL_LOCKS_EXCLUDED(mu_);
  bool WantsServerClock() const override { return trace_ != nullptr; }
  void OnServerClock(absl::Duration offset, absl::Duration error) override;
  void OnExchangePath(absl::string_view transport,
                      absl::string_view text) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnTlsFiles(bool fault, absl::string_view text) override;

  // OK once this worker has joined a run.
  absl::Status Ready() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  WorkerMetrics* const metrics_;
  TraceFile* const trace_;
  const SteadyClock clock_;

  mutable Mutex mu_;
  bool joined_ ABSL_GUARDED_BY(mu_) = false;
  // Empty before the first push.
  std::string transport_ ABSL_GUARDED_BY(mu_);
  // Times since the last heartbeat.
  PhaseTimes phases_ ABSL_GUARDED_BY(mu_) = {};
  int64_t steps_ ABSL_GUARDED_BY(mu_) = 0;
  // At the last heartbeat.
  Instant reported_at_ ABSL_GUARDED_BY(mu_) = clock_.Now();
  double cpu_seconds_ ABSL_GUARDED_BY(mu_) = ReadProcessFigures().cpu_seconds;
};

}  // namespace cohort
