#pragma once

#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/ids.h"
#include "common/model_layout.h"
#include "server/core/policy/call_agreement.h"
#include "server/core/step/round.h"

// Whether the members of a round have made the same batch-norm calls.
namespace cohort {

// A disagreement in which a closed push takes part. Call it once every member
// has closed its push or waits in a rendezvous. Absent: there is none.
std::optional<CallDissent> FindClosedDissent(
    const Round& round, const std::vector<BatchNormSpec>& layers, bool global);

// That of a group whose members have all been `stuck`: waiting for each other
// for so long that no contribution can be under way any more.
std::optional<CallDissent> FindCrossedDissent(
    const Round& round, const std::vector<BatchNormSpec>& layers,
    absl::FunctionRef<bool(Rank)> stuck);

}  // namespace cohort
