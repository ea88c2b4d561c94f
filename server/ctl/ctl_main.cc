// cohortctl: looks at a run that goes on, and changes it.

#include <stdlib.h>
#include <unistd.h>

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/process/signal_watcher.h"
#include "server/ctl/ctl.h"

namespace cohort {
namespace {

// What waits here ends at Ctrl-C. Until something does, Ctrl-C ends the process
// as usual.
class Pauses {
 public:
  // Returns false if interrupted. Called by one thread.
  bool Pause(absl::Duration duration) ABSL_LOCKS_EXCLUDED(mu_) {
    if (signals_ == nullptr) {
      signals_ = std::make_unique<SignalWatcher>([this](int) { Interrupt(); });
    }
    const Instant end = clock_.Now() + duration;
    MutexLock lock(mu_);
    while (!interrupted_) {
      const absl::Duration left = end - clock_.Now();
      if (left <= absl::ZeroDuration()) return true;
      changed_.WaitFor(mu_, left);
    }
    return false;
  }

 private:
  void Interrupt() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    interrupted_ = true;
    changed_.NotifyAll();
  }

  const SteadyClock clock_{};
  Mutex mu_;
  CondVar changed_;
  bool interrupted_ ABSL_GUARDED_BY(mu_) = false;

  // Last: its thread uses everything above.
  std::unique_ptr<SignalWatcher> signals_;
};

std::string Environment(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

int Main(int argc, char** argv) {
  Pauses pauses;
  const SteadyClock clock;
  const bool terminal =
      isatty(STDOUT_FILENO) == 1 && Environment("TERM") != "dumb";
  CtlIo io{.out = std::cout,
           .err = std::cerr,
           .clock = clock,
           .pause = [&pauses](absl::Duration d) { return pauses.Pause(d); },
           .terminal = terminal,
           .color = terminal && Environment("NO_COLOR").empty()};
  return RunCtl(std::vector<std::string>(argv + 1, argv + argc), io);
}

}  // namespace
}  // namespace cohort

int main(int argc, char** argv) { return cohort::Main(argc, argv); }
