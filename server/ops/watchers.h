#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"

namespace cohort {

// Notes who looks at a run again and again: open pages, Prometheus. A server
// whose run is over can then stay until they have seen the end, and need not
// stay if nobody looks.
//
// An open page says when it asks again, and is waited for however short it has
// been open. Others, that have asked three times at most a minute and a half
// apart, are taken to ask again.
//
// Thread safety: safe.
class Watchers {
 public:
  // `clock` must outlive the watchers.
  explicit Watchers(const Clock& clock) : clock_(clock) {}

  // `page` has been asked for, by one that asks `again` after this time; 0: it
  // is not known whether it does.
  void Asked(absl::string_view page, absl::Duration again = {})
      ABSL_LOCKS_EXCLUDED(mu_);

  // The time from now in which all who look ask once more; 0: nobody looks.
  absl::Duration UntilAllAsk() const ABSL_LOCKS_EXCLUDED(mu_);
  // True once all who looked at `since` have had `patience`, and each page has
  // been asked for again, which may take longer on a busy machine; in the end
  // also without.
  bool HaveSeen(Instant since, absl::Duration patience) const
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Asks {
    // Lately, oldest first.
    std::deque<Instant> at;
    absl::Duration again;
  };

  // How often a page is asked for; absent if nobody looks at it at `now`.
  static std::optional<absl::Duration> IntervalOf(const Asks& asks,
                                                  Instant now);

  // Fixed after construction.
  const Clock& clock_;

  mutable Mutex mu_;
  std::map<std::string, Asks> asked_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cohort
