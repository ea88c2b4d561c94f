#pragma once

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "worker/client/assignment_tracker.h"
#include "worker/client/sleeper.h"

namespace cohort {

// Where the streams of one client, on gRPC's threads, meet the one thread
// that drives it. What a stream receives is guarded by `mu`; after changing it
// the stream calls Notify, and the driving thread looks again:
//
//   MutexLock lock(link.mu);
//   while (!what_i_need) {
//     COHORT_RETURN_IF_ERROR(link.WaitLocked(deadline));
//   }
//
// Thread safety: safe.
class Link final : public Sleeper {
 public:
  // `clock` must outlive the link. `server` is named in every error.
  Link(std::string server, const Clock& clock);

  // Waits for the next notification; OK means look again.
  // Errors: those of CheckLocked, and DeadlineExceeded.
  absl::Status WaitLocked(Instant deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // Waits for the next notification whatever the state: for the end of a call
  // that has been cancelled, which always comes.
  void WaitForEndLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // Errors: Cancelled after RequestStop; how the connection broke, if it did.
  absl::Status CheckLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  absl::Status Check() ABSL_LOCKS_EXCLUDED(mu);

  // Sleeps for `pause` unless RequestStop is or was called.
  // Errors: Cancelled.
  absl::Status Pause(absl::Duration pause) override ABSL_LOCKS_EXCLUDED(mu);

  void Notify() { changed_.NotifyAll(); }
  void RequestStop() ABSL_LOCKS_EXCLUDED(mu);

  // Records that the connection is broken, and wakes whoever waits. The first
  // reason counts; it is one of NormalizedEnd.
  void Break(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mu);

  // Forgets all that the last connection left behind. No stream may be open.
  void Mend() ABSL_LOCKS_EXCLUDED(mu);

  // How `end` of the stream `name` is reported. Everything after which
  // another try makes sense becomes Unavailable, so that Cancelled and
  // DeadlineExceeded keep the one meaning they have for callers. Aborted,
  // AlreadyExists and what can never be right stay what they are.
  absl::Status NormalizedEnd(absl::string_view name,
                             const absl::Status& end) const;

  const std::string& server() const { return server_; }
  const Clock& clock() const { return clock_; }

  Mutex mu;
  AssignmentTracker tracker ABSL_GUARDED_BY(mu);

 private:
  // Fixed after construction.
  const std::string server_;
  const Clock& clock_;

  // Synchronises itself.
  CondVar changed_;

  bool stop_requested_ ABSL_GUARDED_BY(mu) = false;
  // OK while the connection holds.
  absl::Status broken_ ABSL_GUARDED_BY(mu);
};

// True if the connection, or the life, is lost but the run is not.
bool IsReconnectable(const absl::Status& status);

}  // namespace cohort
