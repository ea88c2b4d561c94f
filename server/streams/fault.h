#pragma once

#include <memory>

#include "absl/status/status.h"

// Handling of exceptions, in one place. Abseil, protobuf and the standard
// library throw when an allocation fails. gRPC swallows every exception that
// leaves a reaction, so an uncaught one leaves the server running in an unknown
// state.
namespace cohort {

// Returns ResourceExhausted with the text of the exception that is being
// handled. Call it only from a handler.
absl::Status PeerFault() noexcept;

// Ends the process with kExitHalfDone after a log line that names the activity.
// Call it only from a handler.
[[noreturn]] void ExitHalfDone(const char* doing) noexcept;

// Makes an uncaught exception in any thread end the process like ExitHalfDone.
// Call once, early in main.
void ExitOnUncaughtExceptions();

// Returns the status of `serve`, which serves one peer and changes nothing
// that other peers depend on.
// Errors also: ResourceExhausted if `serve` throws; the caller ends the peer's
//   stream with it.
template <typename Serve>
absl::Status ServePeer(Serve serve) {
  try {
    return serve();
  } catch (...) {
    return PeerFault();
  }
}

// Calls a stream, unless there is none; if it throws, only that stream ends.
template <typename To, typename Message>
void Tell(const std::shared_ptr<To>& to, void (To::*send)(const Message&),
          const Message& message) {
  if (to == nullptr) return;
  const absl::Status told = ServePeer([&] {
    (to.get()->*send)(message);
    return absl::OkStatus();
  });
  if (!told.ok()) to->End(told);
}

// Returns the result of `change`, which changes state that all peers share. A
// partial change cannot be undone, so the process ends if `change` throws: the
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
