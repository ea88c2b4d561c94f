#pragma once

#include "absl/status/status.h"

// Handling of exceptions, in one place. Abseil, protobuf and the
// standard library throw when an allocation fails. gRPC swallows whatever
// leaves a reaction, so an exception that nobody catches leaves the server
// running in an unknown state.
namespace cohort {

// ResourceExhausted with the text of the exception that is being handled.
// Call it from a handler only.
absl::Status PeerFault() noexcept;

// Ends the process with kExitHalfDone after a log line that says what was
// being done. Call it from a handler only.
[[noreturn]] void ExitHalfDone(const char* doing) noexcept;

// Makes an uncaught exception of any thread end the process like
// ExitHalfDone. Call once, early in main.
void ExitOnUncaughtExceptions();

// Returns the status of `serve`, which serves one peer and changes nothing
// that other peers depend on.
// Errors: also ResourceExhausted, where `serve` throws; the caller ends the
//   peer's stream with it.
template <typename Serve>
absl::Status ServePeer(Serve serve) {
  try {
    return serve();
  } catch (...) {
    return PeerFault();
  }
}

// Returns the result of `change`, which changes what all peers share. Half of
// a change cannot be taken back, so the process ends where `change` throws: a
// run continues from its last checkpoint, and a wrong state is never saved.
// `doing` is for the log line.
template <typename Change>
auto AllOrExit(const char* doing, Change change) {
  try {
    return change();
  } catch (...) {
    ExitHalfDone(doing);
  }
}

}  // namespace cohort
