#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/ids.h"
#include "common/model_layout.h"
#include "common/push.h"

namespace cohort {

// One member's report on what happened to the moving statistics; see
// PushClosing::changes. Borrowed.
struct MemberChanges {
  Rank rank;
  const std::vector<LayerChanges>* changes = nullptr;
};

// Returns what happened to the moving statistics of the layers in a step of
// these members, ascending by layer.
//
// Members that made a call must have used the same momentum and epsilon; a
// member that skipped calls follows the others. All must have written the same
// values at the same places. Reads after different numbers of calls, and of a
// member that made none of the calls, would have another value in one process.
//
// Errors: FailedPrecondition that names layer, ranks and both values.
absl::StatusOr<std::vector<LayerChanges>> AgreeOnChanges(
    const std::vector<MemberChanges>& members,
    const std::vector<BatchNormSpec>& layers);

}  // namespace cohort
