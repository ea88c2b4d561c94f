#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/assignment.h"
#include "common/ids.h"

namespace cohort {

// Decides which assignment a worker has to do next. The same assignment may
// arrive more than once, over streams that are not ordered relative to each
// other (notices of the session, verdicts, answers to reports). So anything
// older than what is already known is ignored.
//
// Thread safety: none; the owner synchronises.
class AssignmentTracker {
 public:
  // Records an assignment that the server has sent. A wait never replaces work,
  // because the work that follows it may have overtaken it.
  void Offer(const Assignment& assignment);

  // Records that this attempt of the step has ended early.
  void Abort(Version step, Attempt attempt, const std::string& reason);

  // The newest work, or the end of the run; returns each once.
  std::optional<Assignment> Take();
  // The newest wait while there is no work; returns each once.
  std::optional<Assignment> TakeWait();

  // Errors: Aborted if this attempt of the step, a later attempt, or a later
  //   step has ended early.
  absl::Status CheckStep(Version step, Attempt attempt) const;
  // CheckStep for the work that was taken last.
  absl::Status CheckTaken() const;
  // The same without later steps: after the closing of a push, those say
  // nothing of it.
  absl::Status CheckTakenStep() const;

  // True if the end of the run is known and not yet taken.
  bool finished() const;
  // The number of the work in progress; 0 if none.
  Sequence sequence() const;

  // Forgets everything, for a new session: the server then repeats what is
  // outstanding, and a restored server may count from an earlier number.
  void Reset() { *this = AssignmentTracker(); }

 private:
  struct EndedStep {
    Version step;
    Attempt attempt;
    std::string reason;
  };

  // The work in progress, and the work after it if that is already known.
  std::optional<Assignment> taken_;
  std::optional<Assignment> offered_;
  std::optional<Assignment> wait_;
  std::optional<EndedStep> ended_;
};

}  // namespace cohort
