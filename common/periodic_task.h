#pragma once

#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "common/mutex.h"

namespace cohort {

// Calls `body` on its own thread until destroyed: every `interval`, counted
// from the end of the previous call, and whenever it is woken. The first call
// comes after one interval. With an infinite interval it is called only when
// woken.
//
// The destructor waits for a call in progress and makes no further one, so
// `body` may use whatever outlives the task.
// Thread safety: safe; the task must not be destroyed from its own body.
class PeriodicTask {
 public:
  // `name` is shown by debuggers and top (its first 15 characters).
  PeriodicTask(std::string name, absl::Duration interval,
               absl::AnyInvocable<void()> body);
  ~PeriodicTask();
  PeriodicTask(const PeriodicTask&) = delete;
  PeriodicTask& operator=(const PeriodicTask&) = delete;

  // Makes `body` run soon. Any number of wakes before that call begins make one
  // call; a wake during a call makes another one.
  void Wake() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run(const std::string& name);
  // Returns false if the task must end.
  bool WaitForTurn() ABSL_LOCKS_EXCLUDED(mu_);

  // Fixed after construction.
  const absl::Duration interval_;
  // Used by the task's thread only.
  absl::AnyInvocable<void()> body_;

  Mutex mu_;
  CondVar changed_;
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  // Last, so that everything above exists before the thread starts.
  std::thread thread_;
};

}  // namespace cohort
