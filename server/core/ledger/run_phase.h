#pragma once

#include <optional>
#include <set>
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
  void Drain(const std::string& reason) { drain_reason_ = reason; }
  bool draining() const { return drain_reason_.has_value(); }
  const std::string& drain_reason() const { return *drain_reason_; }

  void End(RunOutcome outcome, const std::string& reason) {
    outcome_ = outcome;
    end_reason_ = reason;
  }
  bool ended() const { return outcome_.has_value(); }
  const std::string& end_reason() const { return end_reason_; }
  // Errors: FailedPrecondition with the reason of the end.
  absl::Status CheckNotOver() const {
    if (!ended()) return absl::OkStatus();
    return absl::FailedPreconditionError("the run is over: " + end_reason_);
  }
  // The run has ended because of an error.
  bool failed() const {
    return ended() && outcome_ != RunOutcome::kFinished &&
           outcome_ != RunOutcome::kDrained;
  }
  // The run has ended, but is not done: a server that is started again may
  // continue it. Non-finite weights would be non-finite again.
  bool broke_off() const {
    return outcome_ == RunOutcome::kWorkerLost ||
           outcome_ == RunOutcome::kRefused;
  }

  // With several shards two states are on disk before any of them is acted on.
  enum class Milestone { kStart, kEnd };
  // True if this is the first request to store its state.
  bool RequestStored(Milestone milestone) {
    return requested_.insert(milestone).second;
  }
  bool IsStored(Milestone milestone) const {
    return stored_.contains(milestone);
  }
  // What was requested is on disk.
  void NoteStored() { stored_ = requested_; }

 private:
  bool started_ = false;
  std::optional<std::string> drain_reason_;
  std::optional<RunOutcome> outcome_;
  std::string end_reason_;
  std::set<Milestone> requested_;
  std::set<Milestone> stored_;
};

}  // namespace cohort
