#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/ctl/cluster/line_buffer.h"

namespace cohort {

// How a process ended.
struct ProcessEnd {
  // Its exit code; 128 + signal if a signal ended it, as shells tell it.
  int code = 0;
  // 0: it ended by itself.
  int signal = 0;

  // "ended with exit code 3", "was ended by signal 9 (Killed)".
  std::string Text() const;
};

// A process that this one started, and all that it starts in turn: a process
// group of its own, without a terminal, so that Ctrl-C reaches this process
// alone. stdout and stderr come here, in the order they were written.
//
// It never outlives this process: the system kills it when the thread that
// started it ends, however that came. So that thread must live as long as it.
// Thread safety: none.
class ChildProcess {
 public:
  using OnLine = absl::FunctionRef<void(absl::string_view)>;

  // `command` is the program's path and its arguments.
  // Errors: those of the system, with the path: NotFound, PermissionDenied,
  //   ResourceExhausted (no process or file left), Internal for the rest.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(
      absl::Span<const std::string> command);
  // Kills what still runs, and waits for it.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  // Readable when there is something for ReadLines; -1 at the end of output.
  int output() const { return output_; }

  // Gives out the lines that came since; does not wait.
  void ReadLines(OnLine on_line);
  // Once it has ended: gives out its last lines, kills what it left behind
  // and tells how it ended. Does not wait.
  std::optional<ProcessEnd> TryReap(OnLine on_line);
  // To the whole group. Nothing happens once it is reaped.
  void Signal(int number);

 private:
  ChildProcess(pid_t pid, int output) : pid_(pid), output_(output) {}

  // Returns false if there is nothing more to read for now.
  bool ReadOnce(OnLine on_line);

  const pid_t pid_;
  int output_;
  bool reaped_ = false;
  LineBuffer lines_;
};

}  // namespace cohort
