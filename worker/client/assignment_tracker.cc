#include "worker/client/assignment_tracker.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/push.h"

namespace cohort {
namespace {

PushKey KeyOf(const Assignment& assignment) {
  return {.sequence = assignment.sequence, .attempt = assignment.attempt};
}

// Only a synchronous step can end early; otherwise `version` is not a step.
bool IsStep(const Assignment& assignment) {
  return assignment.kind == AssignmentKind::kTrain &&
         !assignment.members.empty();
}

}  // namespace

void AssignmentTracker::Offer(const Assignment& assignment) {
  if (assignment.kind == AssignmentKind::kWait) {
    wait_ = assignment;
    return;
  }
  // The end of the run has no number to compare, and nothing follows it.
  if (assignment.kind != AssignmentKind::kFinished) {
    const std::optional<Assignment>& newest =
        offered_.has_value() ? offered_ : taken_;
    if (newest.has_value() && (newest->kind == AssignmentKind::kFinished ||
                               KeyOf(assignment) <= KeyOf(*newest))) {
      return;
    }
    // The step ended before its assignment arrived over another stream.
    if (IsStep(assignment) &&
        !CheckStep(assignment.version, assignment.attempt).ok()) {
      return;
    }
  }
  offered_ = assignment;
  wait_.reset();
}

void AssignmentTracker::Abort(Version step, Attempt attempt,
                              const std::string& reason) {
  const bool newer = !ended_.has_value() || step > ended_->step ||
                     (step == ended_->step && attempt > ended_->attempt);
  if (!newer) return;
  ended_ = {.step = step, .attempt = attempt, .reason = reason};
  if (offered_.has_value() && IsStep(*offered_) &&
      !CheckStep(offered_->version, offered_->attempt).ok()) {
    offered_.reset();
  }
}

std::optional<Assignment> AssignmentTracker::Take() {
  if (!offered_.has_value()) return std::nullopt;
  taken_ = std::exchange(offered_, std::nullopt);
  wait_.reset();
  return taken_;
}

std::optional<Assignment> AssignmentTracker::TakeWait() {
  if (offered_.has_value()) return std::nullopt;
  return std::exchange(wait_, std::nullopt);
}

absl::Status AssignmentTracker::CheckStep(Version step, Attempt attempt) const {
  if (!ended_.has_value() || ended_->step < step ||
      (ended_->step == step && ended_->attempt < attempt)) {
    return absl::OkStatus();
  }
  return absl::AbortedError(absl::StrCat("step ", step.value(), ", attempt ",
                                         attempt.value(),
                                         " ended early: ", ended_->reason));
}

absl::Status AssignmentTracker::CheckTaken() const {
  if (!taken_.has_value() || !IsStep(*taken_)) return absl::OkStatus();
  return CheckStep(taken_->version, taken_->attempt);
}

absl::Status AssignmentTracker::CheckTakenStep() const {
  const bool same_step = taken_.has_value() && ended_.has_value() &&
                         taken_->version == ended_->step;
  return same_step ? CheckTaken() : absl::OkStatus();
}

bool AssignmentTracker::finished() const {
  return offered_.has_value() && offered_->kind == AssignmentKind::kFinished;
}

Sequence AssignmentTracker::sequence() const {
  return taken_.has_value() ? taken_->sequence : Sequence();
}

}  // namespace cohort
