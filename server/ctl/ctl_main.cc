// cohortctl: starts runs, shows them, and changes them.

#include <sys/ioctl.h>
#include <unistd.h>

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/cli/environment.h"
#include "common/cli/signal_watcher.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "server/ctl/ctl.h"

namespace cohort {
namespace {

// Pauses that Ctrl-C interrupts. Before the first pause, Ctrl-C ends the
// process as usual.
class Pauses {
 public:
  // Returns false if interrupted. Called by one thread.
  bool Pause(absl::Duration duration) ABSL_LOCKS_EXCLUDED(mu_) {
    if (signals_ == nullptr) {
      signals_ = std::make_unique<SignalWatcher>(
          [this](int number) { Interrupt(number); });
    }
    const Instant end = clock_.Now() + duration;
    MutexLock lock(mu_);
    while (signal_ == 0) {
      if (!changed_.WaitUntil(mu_, clock_, end)) return true;
    }
    return false;
  }

  // The number of the first signal; 0 if there was none.
  int signal() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return signal_;
  }

 private:
  void Interrupt(int number) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    signal_ = number;
    changed_.NotifyAll();
  }

  const SteadyClock clock_{};
  Mutex mu_;
  CondVar changed_;
  int signal_ ABSL_GUARDED_BY(mu_) = 0;

  // Last: its thread uses everything above.
  std::unique_ptr<SignalWatcher> signals_;
};

ScreenSize Screen() {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 ||
      size.ws_row == 0) {
    return {};
  }
  return {.columns = size.ws_col, .rows = size.ws_row};
}

int Main(int argc, char** argv) {
  Pauses pauses;
  const SteadyClock clock;
  const std::vector<std::string> environment = Environment();
  const bool terminal =
      isatty(STDOUT_FILENO) == 1 && ValueIn(environment, "TERM") != "dumb";
  CtlIo io{.out = std::cout,
           .err = std::cerr,
           .clock = clock,
           .program = argv[0],
           .pause = [&pauses](absl::Duration d) { return pauses.Pause(d); },
           .signal = [&pauses] { return pauses.signal(); },
           .terminal = terminal,
           .color = terminal && ValueIn(environment, "NO_COLOR").empty(),
           .environment = environment,
           .screen = [] { return Screen(); }};
  return RunCtl(std::vector<std::string>(argv + 1, argv + argc), io);
}

}  // namespace
}  // namespace cohort

int main(int argc, char** argv) { return cohort::Main(argc, argv); }
