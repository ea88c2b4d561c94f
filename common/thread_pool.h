#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "common/mutex.h"

namespace cohort {

struct ThreadPoolOptions {
  // Name of the threads, shown by debuggers and top (the first 15 characters).
  // Several threads are numbered: "pool-0".
  std::string name = "pool";
  int32_t threads = 1;
  // Number of jobs that may wait; running jobs are not counted.
  int64_t queue_max = 1024;
};

// A fixed number of threads that run jobs in the order of their submission
// (they start in that order; with one thread they also end in it).
//
// The destructor runs every job that was accepted, then joins.
// Thread safety: safe; jobs may submit jobs.
class ThreadPool {
 public:
  using Job = absl::AnyInvocable<void()>;

  // `threads` and `queue_max` must be at least 1.
  explicit ThreadPool(ThreadPoolOptions options);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Errors: ResourceExhausted (queue_max jobs wait; try later),
  //   FailedPrecondition (the pool is being destroyed). The job is destroyed
  //   without having run.
  absl::Status Submit(Job job) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run(int32_t thread) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns an empty job once the pool is stopping and has drained.
  Job NextJob() ABSL_LOCKS_EXCLUDED(mu_);

  // Fixed after construction.
  const ThreadPoolOptions options_;

  Mutex mu_;
  CondVar changed_;
  std::deque<Job> queue_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  // Last, so that everything above exists before a thread starts.
  std::vector<std::thread> threads_;
};

}  // namespace cohort
