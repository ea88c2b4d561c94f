#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "server/core/events/requests.h"
#include "server/core/views.h"

namespace cohort {

// Calls that wait until a change of settings is in force. No thread waits: a
// call is answered by the thread that brings the news.
//
// Thread safety: safe.
class ChangeWaits {
 public:
  struct Wait {
    AwaitedChange change;
    Instant due;
    // Must not block.
    std::function<bool()> is_cancelled;
    // Called once, without a lock, with the policy at that time and OutcomeOf
    // the change, or Cancelled. Still pending: the time is up.
    absl::AnyInvocable<void(const PolicyView&,
                            absl::StatusOr<std::optional<PolicyRecord>>)>
        done;
  };
  static constexpr size_t kCallsMax = 64;

  // Lets a call wait until Check answers it; with kCallsMax others, until the
  // next Check.
  void Add(Wait wait) ABSL_LOCKS_EXCLUDED(mu_);
  // There is a call to answer that is cancelled, or whose time is up.
  bool IsDue(Instant now) const ABSL_LOCKS_EXCLUDED(mu_);
  // Answers calls that are due, or whose change is no longer pending.
  void Check(const PolicyView& policy, Instant now) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable Mutex mu_;
  std::vector<Wait> waits_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cohort
