#include "server/ctl/cluster/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

constexpr size_t kChunkBytes = size_t{16} << 10;
// Limit, so that one process that writes without end does not block the others.
constexpr int kChunksAtOnce = 16;
// Exit code of a child that cannot become the program, as in shells.
constexpr int kExitNoExec = 127;

// A file descriptor that closes itself and is not inherited by programs.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { Close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return fd_; }
  int Release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }
  void Reset(int fd) {
    Close();
    fd_ = fd;
  }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

struct Pipe {
  Descriptor read;
  Descriptor write;
};

absl::Status SystemError(absl::string_view what, int number) {
  const std::string text = absl::StrCat(what, ": ", strerror(number));
  switch (number) {
    case ENOENT:
      return absl::NotFoundError(text);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(text);
    case EAGAIN:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return absl::ResourceExhaustedError(text);
    default:
      return absl::InternalError(text);
  }
}

absl::Status OpenPipe(Pipe& pipe) {
  std::array<int, 2> ends = {};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    return SystemError("a pipe for a process's output", errno);
  }
  pipe.read.Reset(ends[0]);
  pipe.write.Reset(ends[1]);
  return absl::OkStatus();
}

// The program would inherit signals that this process ignores or blocks, and
// could then not be stopped.
void DefaultSignals() {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGCHLD}) {
    signal(number, SIG_DFL);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

// Runs in the child between fork and exec, where other threads do not exist and
// only async-signal-safe system calls are allowed.
[[noreturn]] void BecomeProgram(char* const* arguments, pid_t parent,
                                int nothing, int output, int failure) {
  setpgid(0, 0);
  DefaultSignals();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have ended before the prctl took effect.
  if (getppid() != parent) _exit(kExitNoExec);
  if (dup2(nothing, STDIN_FILENO) >= 0 && dup2(output, STDOUT_FILENO) >= 0 &&
      dup2(output, STDERR_FILENO) >= 0) {
    execv(arguments[0], arguments);
  }
  const int number = errno;
  // A pipe takes these few bytes at once; if not, the parent sees code 127.
  [[maybe_unused]] const ssize_t written =
      write(failure, &number, sizeof(number));
  _exit(kExitNoExec);
}

// Returns 0 once the program runs, otherwise the errno of the failed start.
// Waits until the pipe's other end is closed, which exec does.
int ExecError(int failure) {
  int number = 0;
  ssize_t got = 0;
  do {
    got = read(failure, &number, sizeof(number));
  } while (got < 0 && errno == EINTR);
  return got == static_cast<ssize_t>(sizeof(number)) ? number : 0;
}

ProcessEnd EndOf(int status) {
  if (WIFSIGNALED(status)) {
    return {.code = 128 + WTERMSIG(status), .signal = WTERMSIG(status)};
  }
  return {.code = WEXITSTATUS(status)};
}

}  // namespace

std::string ProcessEnd::Text() const {
  if (signal == 0) return absl::StrCat("ended with exit code ", code);
  return absl::StrCat("was ended by signal ", signal, " (", strsignal(signal),
                      ")");
}

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(
    absl::Span<const std::string> command) {
  COHORT_CHECK(!command.empty(), "a command names its program");
  Pipe output;
  Pipe failure;
  COHORT_RETURN_IF_ERROR(OpenPipe(output));
  COHORT_RETURN_IF_ERROR(OpenPipe(failure));
  const Descriptor nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (nothing.get() < 0) return SystemError("/dev/null", errno);
  fcntl(output.read.get(), F_SETFL, O_NONBLOCK);
  // Built before the fork, because the child must not allocate.
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (const std::string& word : command) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return SystemError("starting a process", errno);
  if (pid == 0) {
    BecomeProgram(arguments.data(), parent, nothing.get(), output.write.get(),
                  failure.write.get());
  }
  // Also called here: a signal to the group may come before the child has set
  // it.
  setpgid(pid, pid);
  failure.write.Close();
  const int error = ExecError(failure.read.get());
  if (error != 0) {
    waitpid(pid, nullptr, 0);
    return SystemError(command[0], error);
  }
  return std::unique_ptr<ChildProcess>(
      new ChildProcess(pid, output.read.Release()));
}

ChildProcess::~ChildProcess() {
  if (!reaped_) {
    Signal(SIGKILL);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  if (output_ >= 0) close(output_);
}

bool ChildProcess::ReadOnce(OnLine on_line) {
  if (output_ < 0) return false;
  std::array<char, kChunkBytes> chunk;
  const ssize_t got = read(output_, chunk.data(), chunk.size());
  if (got > 0) {
    lines_.Append({chunk.data(), static_cast<size_t>(got)}, on_line);
    return true;
  }
  if (got < 0 && errno == EINTR) return true;
  if (got < 0 && errno == EAGAIN) return false;
  close(output_);
  output_ = -1;
  lines_.Flush(on_line);
  return false;
}

void ChildProcess::ReadLines(OnLine on_line) {
  for (int i = 0; i < kChunksAtOnce && ReadOnce(on_line); ++i) {
  }
}

std::optional<ProcessEnd> ChildProcess::TryReap(OnLine on_line) {
  if (reaped_) return std::nullopt;
  siginfo_t info = {};
  // Checks without reaping. Until the process is reaped its number cannot be
  // reused, so the signal goes to its own group.
  if (waitid(P_PID, static_cast<id_t>(pid_), &info,
             WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid != pid_) {
    return std::nullopt;
  }
  Signal(SIGKILL);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  reaped_ = true;
  while (ReadOnce(on_line)) {
  }
  lines_.Flush(on_line);
  return EndOf(status);
}

void ChildProcess::Signal(int number) {
  if (!reaped_) kill(-pid_, number);
}

}  // namespace cohort
