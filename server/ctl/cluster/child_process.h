#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/file_descriptor.h"
#include "server/ctl/cluster/line_buffer.h"

namespace cohort {

// How a process ended.
struct ProcessEnd {
  // Its exit code; 128 + signal if a signal ended it, as in shells.
  int code = 0;
  // 0 if it ended by itself.
  int signal = 0;
  // It had reported a step (common/progress_report.h).
  bool made_step = false;

  // "ended with exit code 3", "was ended by signal 9 (Killed)".
  std::string Text() const;
};

// A process that this one started, with all its descendants. They are another
// process group, without a terminal, so that Ctrl-C reaches only this
// process.
//
// It never outlives this process: the system kills it when the thread that
// started it ends for any reason. So that thread must live as long as the
// child.
// Thread safety: none.
class ChildProcess {
 public:
  using OnLine = absl::FunctionRef<void(absl::string_view)>;
  enum class Output {
    // stdout and stderr come here, in the order they were written.
    kLines,
    // They are those of this process.
    kInherited,
  };

  // `command` is the program's path and its arguments.
  // Errors: those of the system, with the path: NotFound, PermissionDenied,
  //   ResourceExhausted (no process or file left), Internal for the rest.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(
      absl::Span<const std::string> command, Output output = Output::kLines);
  // Kills the child if it still runs, and waits for it.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  // Readable when ReadLines has something to read; -1 at the end of output, and
  // if it is inherited.
  int output() const { return output_.get(); }

  // Passes the lines that have arrived to `on_line`; does not wait.
  void ReadLines(OnLine on_line);
  // If the process has ended, passes on its last lines, kills remaining
  // descendants and returns how it ended. Does not wait.
  std::optional<ProcessEnd> TryReap(OnLine on_line);
  // The same, once it has ended; absent if it still runs after `timeout`.
  std::optional<ProcessEnd> AwaitEnd(absl::Duration timeout, OnLine on_line);

  // Signals the whole group. No-op once the process is reaped.
  void Signal(int number);

 private:
  ChildProcess(pid_t pid, FileDescriptor output, FileDescriptor progress)
      : pid_(pid), output_(std::move(output)), progress_(std::move(progress)) {}

  // Returns false if there is nothing to read for now.
  bool ReadOnce(OnLine on_line);

  const pid_t pid_;
  FileDescriptor output_;
  // Readable once the process has made a step.
  const FileDescriptor progress_;
  bool reaped_ = false;
  LineBuffer lines_;
};

}  // namespace cohort
