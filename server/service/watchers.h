#pragma once

#include <deque>
#include <map>
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
// Whoever has asked for a page three times, at most a minute and a half apart,
// is taken to ask again.
//
// Thread safety: safe.
class Watchers {
 public:
  // `clock` must outlive the watchers.
  explicit Watchers(const Clock& clock) : clock_(clock) {}

  // `page` has been asked for.
  void Asked(absl::string_view page) ABSL_LOCKS_EXCLUDED(mu_);

  // The time from now in which all who look ask once more; 0: nobody looks.
  absl::Duration UntilAllAsk() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Fixed after construction.
  const Clock& clock_;

  mutable Mutex mu_;
  // By page: when it was asked for lately, oldest first.
  std::map<std::string, std::deque<Instant>> asked_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cohort
