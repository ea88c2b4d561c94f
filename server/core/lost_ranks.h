#pragma once

#include <string>

#include "absl/time/time.h"
#include "common/ids.h"
#include "server/core/events/turn.h"
#include "server/core/ledger/run_counts.h"
#include "server/core/run.h"

// The consequences for a run when a rank is lost.
namespace cohort {

// Vacates `rank`: what it was given stays for its replacement, or
// is given up, as the settings say.
void Lose(Run& run, Rank rank, VacancyReason why, const std::string& reason,
          Turn& turn);
// The same; its session and its data streams end with this reason. No-op if it
// is vacant.
void Expel(Run& run, Rank rank, VacancyReason why, const std::string& reason,
           Turn& turn);
// The worker of `rank` leaves once it has finished what it was given.
void AskToLeave(Run& run, Rank rank, const std::string& reason, Turn& turn);
// Gives up what was given to lost ranks. Without that a step may commit, and a
// change take effect.
void WithdrawFromLost(Run& run, const std::string& reason, Turn& turn);

// ---- time
// Loses ranks whose lease, grace, or time to send the initial values is over.
void LoseOverdue(Run& run, Turn& turn);
// How long `worker` may block others without progress: nothing comes of an
// assignment before its last local step.
absl::Duration DeadlineOf(const Worker& worker,
                          const CoordinatorOptions& options);
// Loses the first rank that has blocked others for longer than that.
void LoseStalled(Run& run, Turn& turn);
// Asks for the end of the run if no replacement has come for a rank in time.
void GiveUpAbandoned(Run& run, Turn& turn);

}  // namespace cohort
