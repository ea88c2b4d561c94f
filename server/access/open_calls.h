#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/mutex.h"

namespace cohort {

// A worker has fewer than ten; a page or a script of an operator, a few.
inline constexpr int32_t kOpenCallsEachMax = 64;

// Counts the calls that each client has open. One client can so not take the
// places of all others.
// Thread safety: safe.
class OpenCalls {
 public:
  // `each_max` is the limit of one client.
  explicit OpenCalls(int32_t each_max) : each_max_(each_max) {}

  // Errors: ResourceExhausted: the client has reached its limit.
  absl::Status Check(const std::string& client) const ABSL_LOCKS_EXCLUDED(mu_);

  void Opened(const std::string& client) ABSL_LOCKS_EXCLUDED(mu_);
  void Closed(const std::string& client) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const int32_t each_max_;

  mutable Mutex mu_;
  // Only clients that have some.
  std::map<std::string, int32_t> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cohort
