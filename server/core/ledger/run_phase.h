#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "server/core/events/effects.h"

namespace cohort {

// How far the run is: before training, training, draining, over.
class RunPhase {
 public:
  void Start() { started_ = true; }
  // Training has begun in this process.
  bool started() const { return started_; }

  // The run is to end at the next commit.
  void Drain(const std::string& reason) {
    draining_ = true;
    drain_reason_ = reason;
  }
  bool draining() const { return draining_; }
  const std::string& drain_reason() const { return drain_reason_; }

  void End(RunOutcome outcome, const std::string& reason);
  bool ended() const { return ended_; }
  const std::string& end_reason() const { return end_reason_; }
  // Errors: FailedPrecondition with the reason of the end.
  absl::Status CheckNotOver() const;
  // The run has ended, but is not done: a server that is started again may
  // continue it.
  bool broke_off() const { return broke_off_; }
  // The run has ended because of an error.
  bool failed() const { return failed_; }

  // With several shards two states are on disk before any of them is acted on.
  enum class Milestone { kStart, kEnd };
  // True if this is the first request to store its state.
  bool RequestStored(Milestone milestone);
  bool IsStored(Milestone milestone) const;
  // What was requested is on disk.
  void NoteStored();

 private:
  enum class Storing { kNo, kRequested, kStored };

  bool started_ = false;
  bool draining_ = false;
  std::string drain_reason_;
  bool ended_ = false;
  std::string end_reason_;
  bool broke_off_ = false;
  bool failed_ = false;
  // By milestone.
  std::array<Storing, 2> storing_ = {Storing::kNo, Storing::kNo};
};

}  // namespace cohort
