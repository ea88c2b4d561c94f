#include "worker/telemetry/worker_telemetry.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/log/log.h"

namespace cohort {
namespace {

// The first holds until the worker has joined; the rest follow TrainerState.
constexpr absl::string_view kStates[] = {"joining", "waiting", "training",
                                         "evaluating", "collecting"};

absl::string_view NameOf(TrainerState state) {
  return kStates[1 + static_cast<size_t>(state)];
}

// Such as "step of 64 images, loss 0.5: data 1ms, rendezvous 2ms, ...".
void LogStep(const StepReport& report) {
  std::string text = absl::StrFormat(
      "step of %d images, loss %s", report.samples,
      report.loss.has_value() ? absl::StrFormat("%g", *report.loss) : "none");
  for (size_t i = 0; i < kStepPhases; ++i) {
    absl::StrAppend(&text, i == 0 ? ": " : ", ", kStepPhaseNames[i], " ",
                    absl::FormatDuration(
                        absl::Trunc(report.phases[i], absl::Microseconds(1))));
  }
  Log(LogLevel::kDebug, text);
}

}  // namespace

absl::Span<const absl::string_view> WorkerTelemetry::StateNames() {
  return kStates;
}

void WorkerTelemetry::OnState(TrainerState state) {
  if (metrics_ != nullptr) metrics_->SetState(NameOf(state));
}

void WorkerTelemetry::OnWeights(Version version) {
  SetLogVersion(version.value());
  if (metrics_ != nullptr) metrics_->SetVersion(version.value());
}

void WorkerTelemetry::OnStep(const StepReport& report) {
  if (CurrentLogLevel() == LogLevel::kDebug) LogStep(report);
  {
    MutexLock lock(mu_);
    for (size_t i = 0; i < kStepPhases; ++i) phases_[i] += report.phases[i];
    ++steps_;
  }
  if (metrics_ != nullptr) {
    metrics_->AddStep(report.phases, report.samples, report.loss);
  }
}

void WorkerTelemetry::OnJoined(const Membership& membership, bool again) {
  SetLogContext({{"run", membership.run_id},
                 {"run_name", membership.run_name},
                 {"worker", absl::StrCat(membership.rank.value())},
                 IncarnationField(membership.incarnation)});
  {
    MutexLock lock(mu_);
    joined_ = true;
  }
  if (metrics_ != nullptr && again) metrics_->AddReconnect();
  if (trace_ != nullptr) {
    trace_->SetIdentity(membership.run_id, membership.rank.value());
  }
}

void WorkerTelemetry::OnObstacle(const std::string& text) {
  Log(LogLevel::kWarning, text);
}

void WorkerTelemetry::OnRetry(absl::string_view method) {
  if (metrics_ != nullptr) metrics_->AddRetry(method);
}

WorkerReport WorkerTelemetry::TakeReport() {
  const ProcessFigures process = ReadProcessFigures();
  WorkerReport report;
  if (process.resident_bytes > 0) {
    report.resident_bytes = process.resident_bytes;
  }
  MutexLock lock(mu_);
  report.transport = transport_;
  const Instant now = clock_.Now();
  const double elapsed =
      absl::ToDoubleSeconds(now - std::exchange(reported_at_, now));
  const double used =
      process.cpu_seconds - std::exchange(cpu_seconds_, process.cpu_seconds);
  if (elapsed > 0 && used >= 0) report.cpu_cores = used / elapsed;
  const PhaseTimes phases = std::exchange(phases_, PhaseTimes());
  const auto steps = static_cast<double>(std::exchange(steps_, 0));
  for (size_t i = 0; i < kStepPhases && steps > 0; ++i) {
    report.phases[std::string(kStepPhaseNames[i])] =
        absl::ToDoubleSeconds(phases[i]) / steps;
  }
  return report;
}

void WorkerTelemetry::OnServerClock(absl::Duration offset,
                                    absl::Duration error) {
  if (trace_ != nullptr) trace_->SetServerClock(offset, error);
}

void WorkerTelemetry::OnExchangePath(absl::string_view transport,
                                     absl::string_view text) {
  // The server says in one line that all workers share memory.
  Log(transport == "shm" ? LogLevel::kDebug : LogLevel::kInfo, text);
  MutexLock lock(mu_);
  transport_ = std::string(transport);
}

void WorkerTelemetry::OnTlsFiles(bool fault, absl::string_view text) {
  Log(fault ? LogLevel::kError : LogLevel::kInfo, text);
}

absl::Status WorkerTelemetry::Ready() const {
  MutexLock lock(mu_);
  if (joined_) return absl::OkStatus();
  return absl::UnavailableError("has not joined a run yet");
}

}  // namespace cohort
