#include "common/cli/file_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <limits>

namespace cohort {
namespace {

int64_t Clamped(rlim_t limit) {
  return static_cast<int64_t>(std::min<rlim_t>(
      limit, static_cast<rlim_t>(std::numeric_limits<int32_t>::max())));
}

}  // namespace

int64_t FileLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return Clamped(limit.rlim_cur);
}

int64_t RaiseFileLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  if (limit.rlim_cur < limit.rlim_max) {
    const rlimit raised = {.rlim_cur = limit.rlim_max,
                           .rlim_max = limit.rlim_max};
    // If this is refused, the limit stays as it was.
    setrlimit(RLIMIT_NOFILE, &raised);
  }
  return FileLimit();
}

}  // namespace cohort
