#include "common/periodic_task.h"

#include <algorithm>
#include <utility>

#include "common/clock.h"
#include "common/thread_name.h"

namespace cohort {
namespace {

// An infinite or very long wait would overflow the deadline that the standard
// library computes, and then return at once.
constexpr absl::Duration kWaitMax = absl::Hours(1);

}  // namespace

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
  while (!stopping_ && !woken_) {
    const absl::Duration left = due - clock.Now();
    if (left <= absl::ZeroDuration()) break;
    changed_.WaitFor(mu_, std::min(left, kWaitMax));
  }
  woken_ = false;
  return !stopping_;
}

}  // namespace cohort
