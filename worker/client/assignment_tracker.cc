#include "worker/client/assignment_tracker.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace cohort {
namespace {

PushKey KeyOf(const Assignment& assignment) {
  return {.sequence = assignment.sequence, .attempt = assignment.attempt};
}

// Only a synchronous step can end early; elsewhere `version` is no step.
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
  if (assignment.kind != AssignmentKind::kFinished) {
    if (work_.has_value() && work_->kind == AssignmentKind::kFinished) return;
    if (work_.has_value() && KeyOf(assignment) <= KeyOf(*work_)) return;
    // A step that ended before its assignment arrived over another stream.
    if (IsStep(assignment) &&
        !CheckStep(assignment.version, assignment.attempt).ok()) {
      return;
    }
  }
  work_ = assignment;
  taken_ = false;
  wait_.reset();
}

void AssignmentTracker::Abort(Version step, Attempt attempt,
                              const std::string& reason) {
  const bool newer = !ended_.has_value() || step > ended_->step ||
                     (step == ended_->step && attempt > ended_->attempt);
  if (!newer) return;
  ended_ = {.step = step, .attempt = attempt, .reason = reason};
  if (work_.has_value() && !CheckTaken().ok()) taken_ = true;
}

std::optional<Assignment> AssignmentTracker::Take() {
  if (!work_.has_value() || taken_) return std::nullopt;
  taken_ = true;
  wait_.reset();
  return work_;
}

std::optional<Assignment> AssignmentTracker::TakeWait() {
  if (work_.has_value() && !taken_) return std::nullopt;
  return std::exchange(wait_, std::nullopt);
}

absl::Status AssignmentTracker::CheckStep(Version step, Attempt attempt) const {
  if (!ended_.has_value() || ended_->step != step ||
      ended_->attempt < attempt) {
    return absl::OkStatus();
  }
  return absl::AbortedError(absl::StrCat("step ", step.value(), ", attempt ",
                                         attempt.value(),
                                         " ended early: ", ended_->reason));
}

absl::Status AssignmentTracker::CheckTaken() const {
  if (!work_.has_value() || !IsStep(*work_)) return absl::OkStatus();
  return CheckStep(work_->version, work_->attempt);
}

bool AssignmentTracker::finished() const {
  return work_.has_value() && !taken_ &&
         work_->kind == AssignmentKind::kFinished;
}

Sequence AssignmentTracker::sequence() const {
  return work_.has_value() && taken_ ? work_->sequence : Sequence();
}

}  // namespace cohort
