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

// Where the streams of one client, on gRPC's threads, meet the one thread that
// drives it. `mu` guards the data that a stream receives. After changing it,
// the stream calls Notify, and the driving thread checks again:
//
//   MutexLock lock(link.mu);
//   while (!what_i_need) {
//     COHORT_RETURN_IF_ERROR(link.WaitLocked(deadline));
//   }
//
// Thread safety: safe.
class Link final : public Sleeper {
 public:
  // `clock` must outlive the link. Every error names `server`.
  Link(std::string server, const Clock& clock);

  // Waits for the next notification. OK means check again.
  // Errors: those of CheckLocked, and DeadlineExceeded.
  absl::Status WaitLocked(Instant deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // Waits for the next notification whatever the state. Used for the end of a
  // cancelled call, which always comes.
  void WaitForEndLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // Errors: Cancelled after RequestStop; the reason if the connection broke.
  absl::Status CheckLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  absl::Status Check() ABSL_LOCKS_EXCLUDED(mu);

  // Sleeps for `pause`. Returns early if RequestStop is or was called.
  // Errors: Cancelled.
  absl::Status Pause(absl::Duration pause) override ABSL_LOCKS_EXCLUDED(mu);

  void Notify() { changed_.NotifyAll(); }
  void RequestStop() ABSL_LOCKS_EXCLUDED(mu);

  // Records that the connection is broken, and wakes waiting threads. The first
  // reason is kept; it comes from NormalizedEnd.
  void Break(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mu);

  // Forgets everything about the last connection. No stream may be open.
  void Reset() ABSL_LOCKS_EXCLUDED(mu);

  // The status to report for `end` of the stream `name`. Every error that
  // another try may cure becomes Unavailable, so that Cancelled and
  // DeadlineExceeded have only one meaning for callers. Aborted, AlreadyExists
  // and permanent errors are kept.
  // `other`: the server, if it is not that of the link.
  absl::Status NormalizedEnd(absl::string_view name, const absl::Status& end,
                             absl::string_view other = {}) const;

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

// Marks an error as one that a person has to mend: see ClientHooks::OnObstacle.
absl::Status AsObstacle(absl::Status status);
bool IsObstacle(const absl::Status& status);

// True if `status`, from Link::NormalizedEnd, is the end of a stream on which a
// message was damaged.
bool IsDamage(const absl::Status& status);

// True if the connection, or the incarnation, is lost but the run is not.
bool IsReconnectable(const absl::Status& status);

}  // namespace cohort
