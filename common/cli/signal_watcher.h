#pragma once

#include <functional>

#include "common/periodic_task.h"

namespace cohort {

// Makes SIGINT, SIGTERM and SIGHUP end the process at once, with 128 + the
// number, until a SignalWatcher is made. That is what they do anyhow, except to
// the first process of a container, which the system does not end by a signal
// that it has no handler for. Called by main before anything slow.
void ExitOnEarlySignals();

// Turns SIGINT, SIGTERM and SIGHUP into an ordinary call on an ordinary thread.
// The first signal calls `on_signal`; a second one ends the process at once
// with 128 + its number, but not SIGHUP: a terminal that closes sends several.
// SIGHUP stays ignored in a process that was started so, by nohup. One watcher
// a process, made by main.
class SignalWatcher {
 public:
  // `on_signal` is given the signal's number and must return at once.
  explicit SignalWatcher(std::function<void(int)> on_signal);

 private:
  void Poll();

  const std::function<void(int)> on_signal_;
  // Used by the task's thread only.
  bool told_ = false;
  // Last: its thread uses everything above.
  PeriodicTask task_;
};

}  // namespace cohort
