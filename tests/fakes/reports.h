#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"

namespace cohort {

// The reports of another thread, in order.
// Thread safety: safe.
template <typename Report>
class Reports {
 public:
  void Add(Report report) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    reports_.push_back(std::move(report));
    changed_.NotifyAll();
  }

  // Blocks until there are more than `number` reports; returns that one.
  Report Await(size_t number) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    while (reports_.size() <= number) changed_.Wait(mu_);
    return reports_[number];
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<Report> reports_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cohort
