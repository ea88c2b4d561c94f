#pragma once

#include <sched.h>

#include <algorithm>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace cohort {

// How long to wait awake for another process of this host. On an idle machine,
// waking a thread takes about as long.
inline constexpr absl::Duration kSpinMax = absl::Microseconds(50);

// Calls `done` until it returns true, at most for `limit`, and lets other
// threads run in between. Returns the last result.
template <typename Done>
bool SpinUntil(absl::Duration limit, Done done) {
  if (done()) return true;
  const absl::Time end = absl::Now() + limit;
  do {
    sched_yield();
    if (done()) return true;
  } while (absl::Now() < end);
  return false;
}

}  // namespace cohort
