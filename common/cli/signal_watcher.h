#pragma once

#include <functional>

#include "common/periodic_task.h"

namespace cohort {

// Makes SIGINT, SIGTERM and SIGHUP end the process at once, with exit code 128
// + the number, until a SignalWatcher is made. This is the default action,
// except for the first process of a container: the system does not end it by a
// signal that it has no handler for. main calls this before anything slow.
void ExitOnEarlySignals();

// Turns SIGINT, SIGTERM and SIGHUP into an ordinary call on an ordinary thread.
// The first signal calls `on_signal`. A second one ends the process at once
// with 128 + its number, except SIGHUP, because a closing terminal sends
// several. SIGHUP stays ignored if the process was started that way, by nohup.
// main makes one watcher a process.
class SignalWatcher {
 public:
  // `on_signal` gets the signal's number and must return at once.
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
