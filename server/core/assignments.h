#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/assignment.h"
#include "common/clock.h"
#include "common/ids.h"
#include "server/core/events/turn.h"
#include "server/core/membership/rank_table.h"
#include "server/core/run.h"

// Assignments: the next work of each rank. A rank gets it in the verdict on its
// push, in the answer to its report, or by a notice on its session.
namespace cohort {

// The assignment of `worker` now. It keeps an assignment until that has ended;
// if there is none for it, it waits.
Assignment NextFor(Run& run, Worker& worker, Instant now);
// The assignment of `rank` now; the end of the run for a rank that a smaller
// cohort has given up.
Assignment NextForRank(Run& run, Rank rank, Instant now);

// Notifies the session of `worker` of its assignment.
void NotifyNext(Run& run, Worker& worker, Turn& turn);
// Gives work to those who wait and for whom there is some.
void NotifyWaiting(Run& run, Turn& turn);
// Tells a worker that waits what it waits for now. No-op for a rank that is
// gone or does not wait.
void RepeatWait(Run& run, Rank rank, Turn& turn);
void RepeatWaits(Run& run, Turn& turn);

// Sends verdicts of this turn, each with the rank's next assignment.
void SendAnswers(Run& run, std::vector<effect::SendVerdict>& answers,
                 Turn& turn);

// Whether a report of `worker` is of its outstanding assignment. False: of an
// older one, to be ignored.
// Errors: FailedPrecondition: there is no such assignment.
absl::StatusOr<bool> ReportsOutstanding(const Worker& worker,
                                        AssignmentKind kind, Sequence sequence);

}  // namespace cohort
