#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/ops/metrics_page.h"
#include "common/step_phase.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

namespace cohort {

// The worker's metrics on its operations port, besides those of the process and
// the build. All values of all labels exist from the start.
//
//   cohort_worker_steps_total                    steps that ended with a
//                                                verdict
//   cohort_worker_samples_total                  images of those steps
//   cohort_worker_step_duration_seconds{phase}   seconds of a step in a phase
//   cohort_worker_rpc_retries_total{grpc_method} calls that were tried again
//   cohort_worker_reconnects_total               returns after a broken
//                                                connection
//   cohort_worker_pulled_version                 version of the weights in the
//                                                model
//   cohort_worker_state{state}                   1 for the state it is in
//   cohort_worker_loss                           mean loss of the newest step
//
// Thread safety: safe.
class WorkerMetrics {
 public:
  // `states` and `retried_methods` list all values of these labels.
  WorkerMetrics(absl::Span<const absl::string_view> states,
                absl::Span<const absl::string_view> retried_methods);

  // One of the states; the first at the beginning.
  void SetState(absl::string_view state);
  void SetVersion(int64_t version);
  void AddStep(const std::array<absl::Duration, kStepPhases>& phases,
               int64_t samples, std::optional<double> loss);
  // One of the methods.
  void AddRetry(absl::string_view method);
  void AddReconnect();

  // For the operations port.
  MetricFamilies Collect() const { return registry_.Collect(); }

 private:
  prometheus::Registry registry_;
  // Owned by the registry.
  prometheus::Counter* steps_ = nullptr;
  prometheus::Counter* samples_ = nullptr;
  std::array<prometheus::Histogram*, kStepPhases> phases_ = {};
  std::map<std::string, prometheus::Counter*, std::less<>> retries_;
  prometheus::Counter* reconnects_ = nullptr;
  prometheus::Gauge* version_ = nullptr;
  std::map<std::string, prometheus::Gauge*, std::less<>> states_;
  prometheus::Gauge* loss_ = nullptr;
};

}  // namespace cohort
