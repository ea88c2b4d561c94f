#include "server/ctl/cluster/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/exit_codes.h"
#include "common/progress_report.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

constexpr size_t kChunkBytes = size_t{16} << 10;
// Limit, so that one process that writes without end does not block the others.
constexpr int kChunksAtOnce = 16;

struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
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
  pipe.read = FileDescriptor(ends[0]);
  pipe.write = FileDescriptor(ends[1]);
  return absl::OkStatus();
}

// Both ends close themselves at exec; the child opens its own for the program.
absl::Status OpenProgress(Pipe& progress) {
  std::array<int, 2> ends = {};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return SystemError("a socket for a process's progress", errno);
  }
  progress.read = FileDescriptor(ends[0]);
  progress.write = FileDescriptor(ends[1]);
  return absl::OkStatus();
}

// This process's environment, with the variable that names `progress`.
std::vector<std::string> EnvironmentWith(int progress) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    // One that this process itself was started with is not the child's.
    if (!absl::StartsWith(*entry, absl::StrCat(kProgressVariable, "="))) {
      all.emplace_back(*entry);
    }
  }
  struct stat what = {};
  fstat(progress, &what);
  all.push_back(
      absl::StrCat(kProgressVariable, "=", progress, ":", what.st_ino));
  return all;
}

// Pointers for exec, which are valid as long as `words` is.
std::vector<char*> PointersTo(absl::Span<const std::string> words) {
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (const std::string& word : words) {
    pointers.push_back(const_cast<char*>(word.c_str()));
  }
  pointers.push_back(nullptr);
  return pointers;
}

// What the child needs between fork and exec.
struct Launch {
  char* const* arguments;
  char* const* environment;
  pid_t parent;
  int nothing;
  // -1: inherited.
  int output;
  int progress;
  int failure;
};

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
[[noreturn]] void BecomeProgram(const Launch& launch) {
  setpgid(0, 0);
  DefaultSignals();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have ended before the prctl took effect.
  if (getppid() != launch.parent) _exit(kExitNoProgram);
  const bool joined =
      launch.output < 0 || (dup2(launch.output, STDOUT_FILENO) >= 0 &&
                            dup2(launch.output, STDERR_FILENO) >= 0);
  if (dup2(launch.nothing, STDIN_FILENO) >= 0 && joined &&
      fcntl(launch.progress, F_SETFD, 0) == 0) {
    execve(launch.arguments[0], launch.arguments, launch.environment);
  }
  const int number = errno;
  // A pipe takes these few bytes at once; if not, the parent sees code 127.
  [[maybe_unused]] const ssize_t written =
      write(launch.failure, &number, sizeof(number));
  _exit(kExitNoProgram);
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
    absl::Span<const std::string> command, Output output) {
  COHORT_CHECK(!command.empty(), "a command names its program");
  Pipe lines;
  Pipe progress;
  Pipe failure;
  if (output == Output::kLines) COHORT_RETURN_IF_ERROR(OpenPipe(lines));
  COHORT_RETURN_IF_ERROR(OpenProgress(progress));
  COHORT_RETURN_IF_ERROR(OpenPipe(failure));
  const FileDescriptor nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!nothing.valid()) return SystemError("/dev/null", errno);
  fcntl(lines.read.get(), F_SETFL, O_NONBLOCK);
  // Built before the fork, because the child must not allocate.
  const std::vector<std::string> environment =
      EnvironmentWith(progress.write.get());
  const std::vector<char*> argument_pointers = PointersTo(command);
  const std::vector<char*> environment_pointers = PointersTo(environment);
  const Launch launch{.arguments = argument_pointers.data(),
                      .environment = environment_pointers.data(),
                      .parent = getpid(),
                      .nothing = nothing.get(),
                      .output = lines.write.get(),
                      .progress = progress.write.get(),
                      .failure = failure.write.get()};
  const pid_t pid = fork();
  if (pid < 0) return SystemError("starting a process", errno);
  if (pid == 0) BecomeProgram(launch);
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
      new ChildProcess(pid, std::move(lines.read), std::move(progress.read)));
}

ChildProcess::~ChildProcess() {
  if (!reaped_) {
    Signal(SIGKILL);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

bool ChildProcess::ReadOnce(OnLine on_line) {
  if (!output_.valid()) return false;
  std::array<char, kChunkBytes> chunk;
  const ssize_t got = read(output_.get(), chunk.data(), chunk.size());
  if (got > 0) {
    lines_.Append({chunk.data(), static_cast<size_t>(got)}, on_line);
    return true;
  }
  if (got < 0 && errno == EINTR) return true;
  if (got < 0 && errno == EAGAIN) return false;
  output_.Close();
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
  ProcessEnd end = EndOf(status);
  char byte = 0;
  end.made_step = recv(progress_.get(), &byte, 1, MSG_DONTWAIT) == 1;
  return end;
}

std::optional<ProcessEnd> ChildProcess::AwaitEnd(absl::Duration timeout,
                                                 OnLine on_line) {
  constexpr int kRoundMs = 20;
  const SteadyClock clock;
  std::optional<ProcessEnd> end;
  for (const Instant until = clock.Now() + timeout;
       !end.has_value() && clock.Now() < until; end = TryReap(on_line)) {
    pollfd ready = {.fd = output(), .events = POLLIN, .revents = 0};
    poll(&ready, 1, kRoundMs);
    ReadLines(on_line);
  }
  return end;
}

void ChildProcess::Signal(int number) {
  if (!reaped_) kill(-pid_, number);
}

}  // namespace cohort
