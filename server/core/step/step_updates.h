#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ids.h"
#include "common/push.h"
#include "server/core/events/turn.h"
#include "server/core/membership/rank_table.h"
#include "server/core/step/round.h"
#include "server/core/step/run_parts.h"

namespace cohort {

// The updates of one step: with several optimizers it changes the weights
// several times. All but the last make tentative weights, from which the next
// is computed; each is a transaction that takes the place of the one before. An
// attempt has all its updates or none.
//
// If an update is not finite, the step will change nothing. Its members do not
// know that yet and finish it: they are sent the weights that it began with,
// and what they send is discarded.

// Whether `opening` belongs to the update in progress, which it may begin.
// False: to an earlier one, or it is another than the other members have;
// Round::Progress then says what follows.
// Errors: FailedPrecondition: the update before is in progress, or the policy
//   allows one update.
absl::StatusOr<bool> EnterUpdate(const RunParts& parts, Round& round, Rank rank,
                                 const PushKey& key,
                                 const PushOpening& opening);

// `rank` repeats what it has sent of an earlier update, whose weights it lacks:
// those that it would get are of a later one by now. The attempt ends.
void NoteBehind(Round& round, Rank rank);

// The key of what `worker` sends in the update in progress.
PushKey KeyOf(const Round& round, const Worker& worker);

// `rank` has sent what it can of an update that another one follows, and waits
// for its weights.
bool AwaitsUpdate(const Round& round, Rank rank);

// A gradient of `rank` has come: it may wait from now on, or all have what they
// waited for.
void NoteGradient(Round& round, Rank rank);
// A fold has ended: members may compute again.
void NoteFold(Round& round);

// A partition has come of a step that will change nothing.
void SendUnchanged(RunParts& parts, const Round& round, int32_t partition,
                   Turn& turn);

}  // namespace cohort
