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

// Tracks clients that look at a run repeatedly: open pages, Prometheus. When
// the run is over, the server can stay until they have seen the end, or end at
// once if there are none.
//
// An open page announces its next request, so the server waits for it however
// short it has been open. Another client is expected to return once it has made
// three requests at most a minute and a half apart.
//
// Thread safety: safe.
class Watchers {
 public:
  // `clock` must outlive the watchers.
  explicit Watchers(const Clock& clock) : clock_(clock) {}

  // Records a request for `page` by a client that will request it again after
  // `again`; 0 if it is not known whether it will.
  void Asked(absl::string_view page, absl::Duration again = {})
      ABSL_LOCKS_EXCLUDED(mu_);

  // The time from now in which every watcher requests once more; 0 if there are
  // none.
  absl::Duration UntilAllAsk() const ABSL_LOCKS_EXCLUDED(mu_);
  // True once all watchers at `since` have had `patience`, and each page has
  // been requested again. On a busy machine a request may take longer; after a
  // limit it is not waited for.
  bool HaveSeen(Instant since, absl::Duration patience) const
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Asks {
    // Recent requests, oldest first.
    std::deque<Instant> at;
    absl::Duration again;
  };

  // The interval between requests for a page; absent if it is not watched at
  // `now`.
  static std::optional<absl::Duration> IntervalOf(const Asks& asks,
                                                  Instant now);

  // Fixed after construction.
  const Clock& clock_;

  mutable Mutex mu_;
  std::map<std::string, Asks> asked_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cohort
