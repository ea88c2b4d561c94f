#include "common/process/signal_watcher.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <utility>

namespace cohort {
namespace {

// A person does not notice this much delay.
constexpr absl::Duration kPollInterval = absl::Milliseconds(50);

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

}  // namespace

void SignalWatcher::Block() {
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

SignalWatcher::SignalWatcher(std::function<void(int)> on_signal)
    : on_signal_(std::move(on_signal)),
      task_("signals", kPollInterval, [this] { Poll(); }) {}

// Polls instead of blocking in sigwait, which no destructor could end.
void SignalWatcher::Poll() {
  const sigset_t signals = StopSignals();
  const timespec at_once = {};
  const int signal = sigtimedwait(&signals, nullptr, &at_once);
  if (signal <= 0) return;
  if (signalled_) _exit(128 + signal);
  signalled_ = true;
  on_signal_(signal);
}

}  // namespace cohort
