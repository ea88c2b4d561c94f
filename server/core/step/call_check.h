#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/model_layout.h"
#include "server/core/step/round.h"

// Checks that members report the batch-norm calls that the server has seen,
// and that their calls can make one step.
namespace cohort {

// The push of `rank` has just been closed; moments meet in rendezvous.
std::optional<Round::Fault> FindClosingFault(
    const Round& round, Rank rank, const std::vector<BatchNormSpec>& layers);
// `rank` has contributed to a call that is new after its push was closed.
Round::Fault CallAfterClosing(const Round& round, Rank rank,
                              const CallPlace& place,
                              const std::vector<BatchNormSpec>& layers);

// Why the calls of the members, which have all closed their pushes, cannot be
// paired: one made more calls of a layer than another that made some, or calls
// that may be paired wrongly have inputs of different sizes. `global`: moments
// meet in rendezvous.
std::optional<std::string> FindUnpairedCalls(
    const Round& round, const std::vector<BatchNormSpec>& layers, bool global);

// Members of the group wait, and no rendezvous can be completed. Names who
// waits in what.
std::string StuckText(const Round& round, size_t group,
                      const std::vector<BatchNormSpec>& layers);

// Why a doomed attempt is repeated.
std::string LateText(const Round& round,
                     const std::vector<BatchNormSpec>& layers);
// The members reach calls in orders that contradict each other.
std::string ContradictionText(const Round& round,
                              const std::vector<BatchNormSpec>& layers);

}  // namespace cohort
