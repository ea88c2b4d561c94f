#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/ids.h"
#include "server/core/run.h"
#include "server/core/views.h"

// Describes a run: its status, and the ranks that it waits for. Nothing here
// changes anything.
namespace cohort {

// Ranks that hold the run up.
std::vector<Rank> WaitedFor(const Run& run);
// Until the run gives up waiting for the first of `ranks`; infinite before the
// start.
absl::Duration WaitLeft(const Run& run, const std::vector<Rank>& ranks,
                        Instant now);
// The workers that the run waits for, and how much longer it will.
std::string WaitText(const Run& run, Instant now);

StatusView DescribeStatus(const Run& run, Instant now);
// The record of a change that was accepted; absent while it is pending.
// Errors: Aborted: why it does not take effect.
absl::StatusOr<std::optional<PolicyRecord>> OutcomeOf(
    const PolicyView& policy, const AwaitedChange& change);

PolicyView DescribePolicy(const Run& run, Instant now);

}  // namespace cohort
