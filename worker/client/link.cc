#include "worker/client/link.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/listen_address.h"
#include "common/status_macros.h"
#include "common/wire/security.h"
#include "common/wire/status.h"

namespace cohort {
namespace {

// The mark of AsObstacle. It never leaves the process.
constexpr char kObstacle[] = "cohort/obstacle";
// The mark of an end with DataLoss. It never leaves the process either.
constexpr char kDamage[] = "cohort/damage";

absl::Status StopRequested() {
  return absl::CancelledError("a stop was requested");
}

}  // namespace

Link::Link(std::string server, const Clock& clock)
    : server_(std::move(server)), clock_(clock) {}

absl::Status Link::CheckLocked() const {
  if (stop_requested_) return StopRequested();
  return broken_;
}

absl::Status Link::Check() {
  MutexLock lock(mu);
  return CheckLocked();
}

absl::Status Link::WaitLocked(Instant deadline) {
  COHORT_RETURN_IF_ERROR(CheckLocked());
  if (!changed_.WaitUntil(mu, clock_, deadline)) {
    return absl::DeadlineExceededError(
        absl::StrCat(server_, ": got no answer in time"));
  }
  return CheckLocked();
}

void Link::WaitForEndLocked() { changed_.Wait(mu); }

absl::Status Link::Pause(absl::Duration pause) {
  // Notifications that are meant for other waits do not end it.
  const Instant end = clock_.Now() + pause;
  MutexLock lock(mu);
  do {
    if (stop_requested_) return StopRequested();
  } while (changed_.WaitUntil(mu, clock_, end));
  return absl::OkStatus();
}

void Link::RequestStop() {
  {
    MutexLock lock(mu);
    stop_requested_ = true;
  }
  Notify();
}

void Link::Break(const absl::Status& reason) {
  {
    MutexLock lock(mu);
    if (broken_.ok()) broken_ = reason;
  }
  Notify();
}

void Link::Reset() {
  MutexLock lock(mu);
  broken_ = absl::OkStatus();
  tracker.Reset();
}

absl::Status Link::NormalizedEnd(absl::string_view name,
                                 const absl::Status& end,
                                 absl::string_view other) const {
  const std::string server = other.empty() ? server_ : std::string(other);
  if (end.ok()) {
    return absl::UnavailableError(
        absl::StrCat(server, ": the server closed ", name));
  }
  if (const std::optional<std::string> handshake =
          HandshakeFailure(end.message())) {
    return AsObstacle(absl::UnavailableError(
        absl::StrCat(server, ": no connection: ", *handshake)));
  }
  if (const std::optional<std::string> failure =
          ConnectionFailure(end.message())) {
    const bool denied = IsUnixAddress(server) &&
                        absl::StrContains(*failure, "Permission denied");
    return absl::UnavailableError(absl::StrCat(
        server, ": cannot be reached (", *failure, "); ",
        denied ? "only processes of the server's user may connect there"
               : "is a cohort-server running at that address?"));
  }
  // gRPC gives a call that is cancelled the name of the code for a message.
  const std::string code = absl::StatusCodeToString(end.code());
  const std::string text = absl::StrCat(
      server, ": ", name, " failed", end.message() == code ? "" : ": ",
      end.message() == code ? "" : end.message());
  // Limits and deadlines of the server, gRPC's names for a broken stream, and
  // damage: another try may succeed. Every other code keeps its meaning.
  switch (end.code()) {
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kDataLoss: {
      absl::Status status =
          absl::UnavailableError(absl::StrCat(text, " (", code, ")"));
      if (absl::IsDataLoss(end)) status.SetPayload(kDamage, absl::Cord());
      return status;
    }
    default:
      return absl::Status(end.code(), text);
  }
}

absl::Status AsObstacle(absl::Status status) {
  status.SetPayload(kObstacle, absl::Cord());
  return status;
}

bool IsObstacle(const absl::Status& status) {
  return status.GetPayload(kObstacle).has_value();
}

bool IsDamage(const absl::Status& status) {
  return status.GetPayload(kDamage).has_value();
}

bool IsReconnectable(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnavailable ||
         status.code() == absl::StatusCode::kAborted ||
         status.code() == absl::StatusCode::kAlreadyExists;
}

}  // namespace cohort
