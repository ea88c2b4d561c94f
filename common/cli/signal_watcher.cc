#include "common/cli/signal_watcher.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <utility>

namespace cohort {
namespace {

// Too short for a person to notice.
constexpr absl::Duration kPollInterval = absl::Milliseconds(50);

// The first signal; 0 before that. A handler can access only globals.
std::atomic<int> first_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

// A handler rather than a mask and sigwait: libraries start threads before
// main, and a signal that any of them does not block would end the process.
void HandleSignal(int signal) {
  // The reader of our output may disappear with the terminal.
  if (signal == SIGHUP) ::signal(SIGPIPE, SIG_IGN);
  int none = 0;
  // Relaxed: no other data is published with it.
  const bool first = first_signal.compare_exchange_strong(
      none, signal, std::memory_order_relaxed);
  // A closing terminal sends SIGHUP more than once: from its shell, and from
  // the system when the shell has gone.
  if (!first && signal != SIGHUP) _exit(128 + signal);
}

void ExitNow(int signal) { _exit(128 + signal); }

void Install(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction hangup = {};
  sigaction(SIGHUP, nullptr, &hangup);
  // nohup has the signal ignored; keep it so.
  if (hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
}

}  // namespace

void ExitOnEarlySignals() { Install(ExitNow); }

SignalWatcher::SignalWatcher(std::function<void(int)> on_signal)
    : on_signal_(std::move(on_signal)),
      task_("signals", kPollInterval, [this] { Poll(); }) {
  Install(HandleSignal);
}

void SignalWatcher::Poll() {
  const int signal = first_signal.load(std::memory_order_relaxed);
  if (signal == 0 || told_) return;
  told_ = true;
  on_signal_(signal);
}

}  // namespace cohort
