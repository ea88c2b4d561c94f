#include "worker/datasets/parallel_for.h"

#include <algorithm>

#include "common/check.h"
#include "common/thread_pool.h"

namespace cohort {

void ParallelFor(int32_t threads, int64_t n,
                 absl::FunctionRef<void(int64_t)> body) {
  const auto used = static_cast<int32_t>(std::min<int64_t>(threads, n));
  const auto every = [&](int64_t first) {
    for (int64_t i = first; i < n; i += used) body(i);
  };
  if (used <= 1) {
    every(0);
    return;
  }
  // The pool's destructor waits for all jobs.
  ThreadPool pool({.name = "decode", .threads = used, .queue_max = used});
  for (int32_t t = 0; t < used; ++t) {
    const absl::Status accepted = pool.Submit([&every, t] { every(t); });
    COHORT_CHECK(accepted.ok(), std::string(accepted.message()));
  }
}

}  // namespace cohort
