#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/assignment.h"
#include "common/ids.h"

namespace cohort {

// Which assignment a worker has to do next. The same one may be told more
// than once and over streams that are not ordered among each other (notices
// of the session, verdicts, answers to reports), so what is older than what
// is known already is ignored.
//
// Thread safety: none; the owner synchronises.
class AssignmentTracker {
 public:
  // Takes note of an assignment that the server has sent. A wait never
  // replaces work: the work that follows it may have overtaken it.
  void Offer(const Assignment& assignment);

  // Takes note that this attempt of the step has ended early.
  void Abort(Version step, Attempt attempt, const std::string& reason);

  // The newest work, or the end of the run, each told once.
  std::optional<Assignment> Take();
  // The newest wait while there is no work, each told once.
  std::optional<Assignment> TakeWait();

  // Errors: Aborted if this attempt of the step, or a later one, or a later
  // step, has ended early.
  absl::Status CheckStep(Version step, Attempt attempt) const;
  // The same for the work that was taken last.
  absl::Status CheckTaken() const;

  // True if the end of the run is known and not yet taken.
  bool finished() const;
  // The number of the work in progress; 0 if none.
  Sequence sequence() const;

  // Forgets everything, for a new session: the server then says again what is
  // outstanding, and a restored server may count from further back.
  void Reset() { *this = AssignmentTracker(); }

 private:
  struct EndedStep {
    Version step;
    Attempt attempt;
    std::string reason;
  };

  // In progress, and what comes after it if that is known already.
  std::optional<Assignment> taken_;
  std::optional<Assignment> offered_;
  std::optional<Assignment> wait_;
  std::optional<EndedStep> ended_;
};

}  // namespace cohort
