#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/clock.h"

namespace cohort {

// A std::mutex that Clang's thread-safety analysis understands. Not
// absl::Mutex: the packaged one is not instrumented, and the thread sanitizer
// then reports races on fields that are guarded correctly.
class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mu_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mu_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mu_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(mu) {
    mu_.Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mu_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mu_;
};

// Condition variable for Mutex. Callers loop over their condition.
class CondVar {
 public:
  void Wait(Mutex& mu) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    std::unique_lock<std::mutex> lock(mu.mu_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }

  // Returns false if `timeout` passed first.
  bool WaitFor(Mutex& mu, absl::Duration timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    std::unique_lock<std::mutex> lock(mu.mu_, std::adopt_lock);
    const std::cv_status status =
        cv_.wait_for(lock, absl::ToChronoNanoseconds(timeout));
    lock.release();
    return status == std::cv_status::no_timeout;
  }

  // Waits for a notification until `deadline` on `clock`, which must run as
  // real time does. Returns false, without waiting, once that has passed. A
  // loop ends at its deadline however often it is woken before:
  //
  //   while (!done_) {
  //     if (!changed_.WaitUntil(mu_, clock, deadline)) return false;
  //   }
  bool WaitUntil(Mutex& mu, const Clock& clock, Instant deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    // An infinite or very long wait would overflow the deadline that the
    // standard library computes, and then return at once.
    constexpr absl::Duration kWaitMax = absl::Hours(1);
    const absl::Duration left = deadline - clock.Now();
    if (left <= absl::ZeroDuration()) return false;
    WaitFor(mu, std::min(left, kWaitMax));
    return true;
  }

  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace cohort
