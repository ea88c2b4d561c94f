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

// Between two reports of what is waited for.
constexpr absl::Duration kRepeatInterval = absl::Seconds(10);
// Damage on the way that comes more often has another cause.
constexpr int kPullTriesMax = 5;

}  // namespace

RetryingClient::RetryingClient(std::unique_ptr<Client> once,
                               const ClientOptions& options, const Clock& clock,
                               Sleeper& sleeper)
    : ForwardingClient(*once),
      once_(std::move(once)),
      options_(options),
      clock_(clock),
      sleeper_(sleeper),
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
    // than server_timeout, which is for a server that is away.
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
    COHORT_RETURN_IF_ERROR(Connect().status());
  }
}

absl::StatusOr<PulledVersion> RetryingClient::Pull(const PullWish& wish) {
  Backoff backoff(options_.backoff_seed);
  for (int tries = 1;; ++tries) {
    absl::StatusOr<PulledVersion> pulled = once_->Pull(wish);
    // Damage on the way is not the version's: what is sent again is whole. If
    // it never is, something else is wrong, and someone must look at it.
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
    if (status.ok()) joined_ = true;
    if (!IsReconnectable(status)) return membership;
    const bool patient = clock_.Now() < deadline;
    // An attempt that the end of patience cut short knows less than the others.
    if (patient || reason.empty()) {
      reason = std::string(absl::StripPrefix(
          status.message(), absl::StrCat(options_.server, ": ")));
    }
    if (patient) {
      // A text may count down.
      const bool soon = clock_.Now() - told_at < kRepeatInterval;
      if (told.empty() || (told != status.message() && !soon)) {
        told = std::string(status.message());
        told_at = clock_.Now();
        Observe(absl::StrCat("waiting to join: ", told));
      }
      TellRetry(kSessionMethod);
      if (absl::IsAborted(status) && may_return) {
        // The old life is over, or the server has never heard of it. The next
        // try starts a new one, so nothing need pass before it.
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

void RetryingClient::Observe(const std::string& sentence) {
  if (observer_) observer_(sentence);
}

void RetryingClient::TellRetry(absl::string_view method) {
  if (options_.hooks != nullptr) options_.hooks->OnRetry(method);
}

}  // namespace cohort
