#include "server/streams/fault.h"

#include <unistd.h>

#include <cstdio>
#include <exception>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/cli/command_line.h"
#include "common/log/log.h"

namespace cohort {
namespace {

std::string ExceptionText() {
  const std::exception_ptr current = std::current_exception();
  if (current == nullptr) return "no exception";
  try {
    std::rethrow_exception(current);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

}  // namespace

absl::Status PeerFault() noexcept {
  return absl::ResourceExhaustedError(
      absl::StrCat("the server could not serve this call: ", ExceptionText(),
                   "; send less at a time or give the server more memory"));
}

void ExitHalfDone(const char* doing) noexcept {
  try {
    Log(LogLevel::kError,
        absl::StrCat("exception in '", doing, "': ", ExceptionText(),
                     "; the state may be inconsistent, so the process ends; "
                     "start the server again with --resume"));
    FlushLog();
  } catch (...) {
    // There is no memory for a log line.
    std::fprintf(stderr, "exception in '%s'; the process ends\n", doing);
  }
  // Skips destructors, because they would wait for threads and write a last
  // checkpoint.
  _exit(kExitHalfDone);
}

void ExitOnUncaughtExceptions() {
  std::set_terminate([] { ExitHalfDone("a background thread"); });
}

}  // namespace cohort
