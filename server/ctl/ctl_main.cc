// cohortctl: starts runs, shows them, and changes them.

#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "common/cli/environment.h"
#include "common/cli/progress_line.h"
#include "common/cli/signal_watcher.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/wire/grpc_log.h"
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

// The keyboard of a terminal. Keys are read one by one and not echoed from the
// first wait until destruction; Ctrl-C stays a signal.
class Keyboard {
 public:
  explicit Keyboard(Pauses& pauses) : pauses_(pauses) {}
  ~Keyboard() {
    if (raw_) tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
  }
  Keyboard(const Keyboard&) = delete;
  Keyboard& operator=(const Keyboard&) = delete;

  // False in the background, where reading the terminal would stop the process.
  static bool Exists() {
    return isatty(STDIN_FILENO) == 1 && tcgetpgrp(STDIN_FILENO) == getpgrp();
  }

  // As CtlIo::keys.
  bool Wait(absl::Duration duration, std::string& typed) {
    MakeRaw();
    const Instant end = clock_.Now() + duration;
    for (;;) {
      // Short slices, because a signal does not end the poll: another thread
      // takes it.
      const absl::Duration left =
          std::clamp(end - clock_.Now(), absl::ZeroDuration(), kSlice);
      pollfd keys = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
      const int ready =
          poll(&keys, 1, static_cast<int>(absl::ToInt64Milliseconds(left)));
      if (!pauses_.Pause(absl::ZeroDuration())) return false;
      if (ready > 0) return Read(typed);
      if (clock_.Now() >= end) return true;
    }
  }

 private:
  static constexpr absl::Duration kSlice = absl::Milliseconds(50);

  void MakeRaw() {
    if (raw_ || tcgetattr(STDIN_FILENO, &before_) != 0) return;
    termios changed = before_;
    changed.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    raw_ = tcsetattr(STDIN_FILENO, TCSADRAIN, &changed) == 0;
  }

  // False once the terminal is gone.
  static bool Read(std::string& typed) {
    char bytes[256];
    const ssize_t count = read(STDIN_FILENO, bytes, sizeof(bytes));
    if (count <= 0) return false;
    typed.append(bytes, static_cast<size_t>(count));
    return true;
  }

  Pauses& pauses_;
  const SteadyClock clock_{};
  termios before_ = {};
  bool raw_ = false;
};

int Main(int argc, char** argv) {
  SilenceGrpcLog();
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
           .screen = TerminalSize};
  Keyboard keyboard(pauses);
  if (terminal && Keyboard::Exists()) {
    io.keys = [&keyboard](absl::Duration d, std::string& typed) {
      return keyboard.Wait(d, typed);
    };
  }
  return RunCtl(std::vector<std::string>(argv + 1, argv + argc), io);
}

}  // namespace
}  // namespace cohort

int main(int argc, char** argv) { return cohort::Main(argc, argv); }
