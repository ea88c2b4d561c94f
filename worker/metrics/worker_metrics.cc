#include "worker/metrics/worker_metrics.h"

namespace cohort {
namespace {

// Covers a rendezvous on one machine up to a step that waits for a replacement.
const prometheus::Histogram::BucketBoundaries& PhaseBuckets() {
  static const auto& buckets = *new prometheus::Histogram::BucketBoundaries{
      0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2,
      0.5,   1,     2,     5,    10,   30,   60,  300};
  return buckets;
}

prometheus::Family<prometheus::Counter>& Counters(
    prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}

prometheus::Family<prometheus::Gauge>& Gauges(prometheus::Registry& registry,
                                              const char* name,
                                              const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}

}  // namespace

WorkerMetrics::WorkerMetrics(
    absl::Span<const absl::string_view> states,
    absl::Span<const absl::string_view> retried_methods) {
  steps_ = &Counters(registry_, "cohort_worker_steps_total",
                     "Steps that ended with a verdict.")
                .Add({});
  samples_ = &Counters(registry_, "cohort_worker_samples_total",
                       "Images of the steps that ended with a verdict.")
                  .Add({});
  auto& durations = prometheus::BuildHistogram()
                        .Name("cohort_worker_step_duration_seconds")
                        .Help("Time of a step spent in each phase.")
                        .Register(registry_);
  for (size_t i = 0; i < kStepPhases; ++i) {
    phases_[i] = &durations.Add({{"phase", std::string(kStepPhaseNames[i])}},
                                PhaseBuckets());
  }
  auto& retries = Counters(registry_, "cohort_worker_rpc_retries_total",
                           "Calls that were retried.");
  for (const absl::string_view method : retried_methods) {
    const std::string name(method);
    retries_[name] = &retries.Add({{"grpc_method", name}});
  }
  reconnects_ =
      &Counters(registry_, "cohort_worker_reconnects_total",
                "Reconnections to the server after a broken connection.")
           .Add({});
  version_ = &Gauges(registry_, "cohort_worker_pulled_version",
                     "Version of the weights that this worker computes with.")
                  .Add({});
  auto& state = Gauges(registry_, "cohort_worker_state",
                       "1 for the state that the worker is in.");
  for (const absl::string_view name : states) {
    states_[std::string(name)] = &state.Add({{"state", std::string(name)}});
  }
  loss_ = &Gauges(registry_, "cohort_worker_loss",
                  "Mean loss of this worker's newest step.")
               .Add({});
  SetState(states.front());
}

void WorkerMetrics::SetState(absl::string_view state) {
  for (auto& [name, gauge] : states_) gauge->Set(name == state ? 1 : 0);
}

void WorkerMetrics::SetVersion(int64_t version) {
  version_->Set(static_cast<double>(version));
}

void WorkerMetrics::AddStep(
    const std::array<absl::Duration, kStepPhases>& phases, int64_t samples,
    std::optional<double> loss) {
  steps_->Increment();
  samples_->Increment(static_cast<double>(samples));
  for (size_t i = 0; i < kStepPhases; ++i) {
    phases_[i]->Observe(absl::ToDoubleSeconds(phases[i]));
  }
  if (loss.has_value()) loss_->Set(*loss);
}

void WorkerMetrics::AddRetry(absl::string_view method) {
  const auto at = retries_.find(method);
  if (at != retries_.end()) at->second->Increment();
}

void WorkerMetrics::AddReconnect() { reconnects_->Increment(); }

}  // namespace cohort
