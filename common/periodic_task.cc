#include "common/periodic_task.h"

#include <utility>

#include "common/clock.h"
#include "common/thread_name.h"

namespace cohort {

PeriodicTask::PeriodicTask(std::string name, absl::Duration interval,
                           absl::AnyInvocable<void()> body)
    : interval_(interval),
      body_(std::move(body)),
      thread_([this, name = std::move(name)] { Run(name); }) {}

PeriodicTask::~PeriodicTask() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

void PeriodicTask::Wake() {
  {
    MutexLock lock(mu_);
    woken_ = true;
  }
  changed_.NotifyAll();
}

void PeriodicTask::Run(const std::string& name) {
  SetThreadName(name);
  while (WaitForTurn()) body_();
}

bool PeriodicTask::WaitForTurn() {
  const SteadyClock clock;
  const Instant due = clock.Now() + interval_;
  MutexLock lock(mu_);
  while (!stopping_ && !woken_ && changed_.WaitUntil(mu_, clock, due)) {
  }
  woken_ = false;
  return !stopping_;
}

}  // namespace cohort
