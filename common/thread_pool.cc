#include "common/thread_pool.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/thread_name.h"

namespace cohort {

ThreadPool::ThreadPool(ThreadPoolOptions options)
    : options_(std::move(options)) {
  COHORT_CHECK(options_.threads >= 1 && options_.queue_max >= 1,
               absl::StrCat(options_.name, ": got ", options_.threads,
                            " threads and a queue of ", options_.queue_max));
  for (int32_t i = 0; i < options_.threads; ++i) {
    threads_.emplace_back([this, i] { Run(i); });
  }
}

ThreadPool::~ThreadPool() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  // The threads run what is queued before they end (NextJob).
  for (std::thread& thread : threads_) thread.join();
}

absl::Status ThreadPool::Submit(Job job) {
  {
    MutexLock lock(mu_);
    if (stopping_) {
      return absl::FailedPreconditionError(
          absl::StrCat(options_.name, " is stopping"));
    }
    if (static_cast<int64_t>(queue_.size()) >= options_.queue_max) {
      return absl::ResourceExhaustedError(absl::StrCat(
          options_.name, ": ", options_.queue_max, " jobs are already queued"));
    }
    queue_.push_back(std::move(job));
  }
  // Without the lock, which the thread that wakes needs at once.
  changed_.NotifyOne();
  return absl::OkStatus();
}

void ThreadPool::Run(int32_t thread) {
  SetThreadName(options_.threads == 1
                    ? options_.name
                    : absl::StrCat(options_.name, "-", thread));
  while (Job job = NextJob()) job();
}

ThreadPool::Job ThreadPool::NextJob() {
  MutexLock lock(mu_);
  while (queue_.empty() && !stopping_) changed_.Wait(mu_);
  if (queue_.empty()) return nullptr;
  Job job = std::move(queue_.front());
  queue_.pop_front();
  return job;
}

}  // namespace cohort
