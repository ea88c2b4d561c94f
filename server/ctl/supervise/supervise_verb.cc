#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/exit_codes.h"
#include "common/file_descriptor.h"
#include "common/status_macros.h"
#include "server/ctl/cluster/child_process.h"
#include "server/ctl/verb.h"

namespace cohort {
namespace {

constexpr int32_t kRestartsDefault = 3;
constexpr int32_t kRestartsMax = 1'000'000;
// Time between two looks at the program.
constexpr absl::Duration kRound = absl::Milliseconds(50);

// Keeps one program running, as the entry of a container. It asks no server
// what to do: a worker's certificate does not permit it.
class Supervisor {
 public:
  Supervisor(std::vector<std::string> command, int32_t restarts_max, CtlIo& io)
      : command_(std::move(command)), restarts_max_(restarts_max), io_(io) {}

  // Returns the exit code: that of the program's last process, or 128 + the
  // signal that ended it.
  absl::StatusOr<int> Run() {
    // From here on a signal is passed on to the program.
    if (!io_.pause(absl::ZeroDuration())) return 128 + io_.signal();
    // What the program leaves behind becomes a child of this process, as it
    // does in a container.
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (;;) {
      COHORT_ASSIGN_OR_RETURN(const ProcessEnd end, RunOnce());
      // The program itself has said why it ended so.
      if (stopping_ || end.code == kExitOk || WouldEndSoAgain(end.code)) {
        return end.code;
      }
      const std::string why_not = WhyNotAgain({.code = end.code,
                                               .restarts = restarts_,
                                               .restarts_max = restarts_max_},
                                              "--max_restarts");
      io_.err << "supervise: " << command_[1] << " " << end.Text() << ": "
              << (why_not.empty()
                      ? absl::StrCat("it is started again, ", restarts_ + 1,
                                     " of ", restarts_max_,
                                     " times without a step")
                      : why_not)
              << std::endl;
      if (!why_not.empty()) return end.code;
      ++restarts_;
    }
  }

 private:
  // One process of the program, from its start to its end.
  absl::StatusOr<ProcessEnd> RunOnce() {
    COHORT_ASSIGN_OR_RETURN(
        const std::unique_ptr<ChildProcess> child,
        ChildProcess::Start(command_, ChildProcess::Output::kInherited));
    for (;;) {
      AwaitEnd(child->pid());
      if (!stopping_ && !io_.pause(absl::ZeroDuration())) {
        stopping_ = true;
        child->Signal(io_.signal());
      }
      std::optional<ProcessEnd> end = child->TryReap([](absl::string_view) {});
      ReapOrphans(child->pid());
      if (!end.has_value()) continue;
      if (end->made_step) restarts_ = 0;
      return *std::move(end);
    }
  }

  // Returns after kRound at the latest, because signals are noticed by another
  // thread.
  static void AwaitEnd(pid_t child) {
    const FileDescriptor handle(
        static_cast<int>(syscall(SYS_pidfd_open, child, 0)));
    pollfd end = {.fd = handle.get(), .events = POLLIN, .revents = 0};
    // Where the system has no such handles, poll ignores the -1 and waits.
    poll(&end, 1, static_cast<int>(absl::ToInt64Milliseconds(kRound)));
  }

  // What descendants of the program have left behind.
  static void ReapOrphans(pid_t child) {
    for (;;) {
      siginfo_t info = {};
      if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
          info.si_pid == 0 || info.si_pid == child) {
        return;
      }
      waitpid(info.si_pid, nullptr, 0);
    }
  }

  const std::vector<std::string> command_;
  const int32_t restarts_max_;
  CtlIo& io_;
  // Starts since the last step.
  int32_t restarts_ = 0;
  bool stopping_ = false;
};

absl::Status RunSupervisor(Context& context) {
  const std::vector<std::string> program =
      context.arguments.rest.value_or(std::vector<std::string>());
  if (program.empty()) {
    return absl::InvalidArgumentError(
        "supervise: got no program, want -- PROGRAM ARGUMENTS");
  }
  COHORT_ASSIGN_OR_RETURN(
      const int32_t restarts_max,
      NumberOf(context.arguments, "max_restarts", kRestartsDefault,
               {.min = 0, .max = kRestartsMax}));
  // env looks for the program on the PATH, and becomes it.
  std::vector<std::string> command = {"/usr/bin/env"};
  command.insert(command.end(), program.begin(), program.end());
  Supervisor supervisor(std::move(command), restarts_max, context.io);
  COHORT_ASSIGN_OR_RETURN(context.exit_code, supervisor.Run());
  return absl::OkStatus();
}

}  // namespace

Verb SuperviseVerb() {
  return {
      .name = "supervise",
      .summary =
          "runs a program and restarts it when it dies, as in a container",
      .flags = {{"max_restarts", "N",
                 "how often the program is restarted without a step in between "
                 "(default 3)"}},
      .rest = "PROGRAM",
      .contacts = Contacts::kNothing,
      .prints_json = false,
      .examples = {"cohortctl supervise -- cohort-worker --server=host:7070",
                   "cohortctl supervise --max_restarts=10 -- python3 train.py"},
      .run = &RunSupervisor};
}

}  // namespace cohort
