#include "worker/client/retrying_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "worker/client/client_hooks.h"
#include "worker/client/link.h"

namespace cohort {
namespace {

// Time between two reports of the same wait.
constexpr absl::Duration kRepeatInterval = absl::Seconds(10);
// Time between two reports of an obstacle, whatever its text.
constexpr absl::Duration kObstacleInterval = absl::Seconds(30);
// Damage that occurs more often than this has another cause than the network.
constexpr int kPullTriesMax = 5;
constexpr int kDamagesMax = 10;

}  // namespace

RetryingClient::RetryingClient(std::unique_ptr<Client> once,
                               const ClientOptions& options, const Clock& clock,
                               Sleeper& sleeper)
    : ForwardingClient(*once),
      once_(std::move(once)),
      options_(options),
      clock_(clock),
      sleeper_(sleeper),
      loss_backoff_(options.backoff_seed),
      join_backoff_(options.backoff_seed) {
  once_->SetObserver([this](const std::string& sentence) {
    heard_wait_ = true;
    Observe(sentence);
  });
}

absl::StatusOr<Membership> RetryingClient::Join() {
  if (joined_) return absl::FailedPreconditionError("Join was called twice");
  return Connect();
}

absl::StatusOr<Registration> RetryingClient::Register(
    const ModelLayout& layout, const RunPlan& plan,
    absl::Span<const absl::Span<const float>> values,
    absl::Span<const LayerStatistics> statistics) {
  Instant deadline = clock_.Now() + options_.server_timeout;
  Backoff backoff(options_.backoff_seed);
  for (;;) {
    heard_wait_ = false;
    absl::StatusOr<Registration> registration =
        once_->Register(layout, plan, values, statistics);
    // Registering twice is harmless, so the caller need not know that the
    // server was restarted at this moment.
    if (!IsReconnectable(registration.status())) return registration;
    // The server was there and waited for other workers. That may take longer
    // than server_timeout, which applies to a server that is away.
    if (heard_wait_) deadline = clock_.Now() + options_.server_timeout;
    if (clock_.Now() >= deadline) return registration;
    Observe(
        absl::StrCat("registering again: ", registration.status().message()));
    TellRetry(kRegisterMethod);
    COHORT_RETURN_IF_ERROR(sleeper_.Pause(backoff.Next()));
    COHORT_RETURN_IF_ERROR(Connect().status());
  }
}

absl::StatusOr<Assignment> RetryingClient::NextAssignment() {
  for (;;) {
    absl::StatusOr<Assignment> assignment = once_->NextAssignment();
    if (!IsReconnectable(assignment.status())) return assignment;
    Observe(absl::StrCat("reconnecting: ", assignment.status().message()));
    COHORT_RETURN_IF_ERROR(PaceReturn(assignment.status()));
    COHORT_RETURN_IF_ERROR(Connect().status());
  }
}

absl::Status RetryingClient::PaceReturn(const absl::Status& lost) {
  if (IsDamage(lost) && ++damages_ == kDamagesMax) {
    return absl::DataLossError(
        absl::StrCat(lost.message(), "; this was the ", kDamagesMax,
                     "th connection in a row on which something was damaged"));
  }
  if (++losses_ == 1) return absl::OkStatus();
  return sleeper_.Pause(loss_backoff_.Next());
}

void RetryingClient::NoteDone(const absl::Status& done) {
  if (!done.ok()) return;
  losses_ = 0;
  damages_ = 0;
  loss_backoff_.Reset();
}

absl::StatusOr<PushResult> RetryingClient::ClosePush(
    const PushClosing& closing) {
  absl::StatusOr<PushResult> result = once_->ClosePush(closing);
  NoteDone(result.status());
  return result;
}

absl::Status RetryingClient::ReportEvaluation(const EvaluationSums& sums) {
  const absl::Status done = once_->ReportEvaluation(sums);
  NoteDone(done);
  return done;
}

absl::Status RetryingClient::ReportMoments(
    absl::Span<const CallMoments> calls) {
  const absl::Status done = once_->ReportMoments(calls);
  NoteDone(done);
  return done;
}

absl::StatusOr<PulledVersion> RetryingClient::Pull(const PullOptions& options) {
  Backoff backoff(options_.backoff_seed);
  for (int tries = 1;; ++tries) {
    absl::StatusOr<PulledVersion> pulled = once_->Pull(options);
    // The reply was damaged on its way, not the version itself, so the next one
    // should be whole. If it never is, something else is wrong and needs a
    // person's attention.
    if (!absl::IsDataLoss(pulled.status()) || tries == kPullTriesMax) {
      return pulled;
    }
    Observe(
        absl::StrCat("reading the weights again: ", pulled.status().message()));
    TellRetry(kPullMethod);
    COHORT_RETURN_IF_ERROR(sleeper_.Pause(backoff.Next()));
  }
}

void RetryingClient::SetObserver(
    std::function<void(const std::string&)> observer) {
  observer_ = std::move(observer);
}

absl::StatusOr<Membership> RetryingClient::Connect() {
  const Instant deadline = clock_.Now() + options_.server_timeout;
  std::string told;
  Instant told_at;
  std::string reason;
  bool may_return = joined_;
  join_backoff_.Reset();
  for (;;) {
    absl::StatusOr<Membership> membership = once_->Join();
    const absl::Status& status = membership.status();
    if (status.ok()) {
      // A wait that was reported ends with a report.
      if (joined_ || !reason.empty()) {
        Observe(absl::StrCat("joined as rank ", membership->rank.value(),
                             ", at step ", membership->version.value()));
      }
      joined_ = true;
    }
    if (!IsReconnectable(status)) return membership;
    const bool patient = clock_.Now() < deadline;
    // An attempt that the deadline cut short knows less than the earlier ones.
    if (patient || reason.empty()) {
      reason = std::string(absl::StripPrefix(
          status.message(), absl::StrCat(options_.server, ": ")));
    }
    // Reported as a warning, and not as a plain wait too.
    const bool obstacle = IsObstacle(status) && options_.hooks != nullptr;
    if (obstacle) TellObstacle(status);
    if (patient) {
      // The text may contain a countdown, so it is reported at an interval.
      const bool soon = clock_.Now() - told_at < kRepeatInterval;
      if (!obstacle && (told.empty() || (told != status.message() && !soon))) {
        told = std::string(status.message());
        told_at = clock_.Now();
        Observe(absl::StrCat("waiting to join: ", told));
      }
      TellRetry(kSessionMethod);
      if (absl::IsAborted(status) && may_return) {
        // The old incarnation is over, or the server does not know it. The next
        // try starts a new one, so it need not pause first.
        may_return = false;
        continue;
      }
      COHORT_RETURN_IF_ERROR(sleeper_.Pause(
          std::min(join_backoff_.Next(), deadline - clock_.Now())));
    }
    if (clock_.Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "could not join ", options_.server, " within ",
          absl::FormatDuration(options_.server_timeout), ": ", reason));
    }
  }
}

void RetryingClient::TellObstacle(const absl::Status& status) {
  const Instant now = clock_.Now();
  const bool soon = obstacle_told_at_.has_value() &&
                    now - *obstacle_told_at_ < kObstacleInterval;
  if (soon) return;
  obstacle_told_at_ = now;
  options_.hooks->OnObstacle(absl::StrCat(
      status.message(), "; this worker tries again until --server_timeout (",
      absl::FormatDuration(options_.server_timeout), ")"));
}

void RetryingClient::Observe(const std::string& sentence) {
  if (observer_) observer_(sentence);
}

void RetryingClient::TellRetry(absl::string_view method) {
  if (options_.hooks != nullptr) options_.hooks->OnRetry(method);
}

}  // namespace cohort
