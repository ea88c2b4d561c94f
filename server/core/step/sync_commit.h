#pragma once

#include <optional>
#include <string>

#include "common/clock.h"
#include "server/core/events/effects.h"
#include "server/core/events/turn.h"
#include "server/core/optimizer/fold_report.h"
#include "server/core/step/round.h"
#include "server/core/step/run_parts.h"

// From the pushes of a round to the next version.
namespace cohort {

// Tells the shards what goes into the commit, once all members have opened
// their pushes.
void PrepareCommit(RunParts& parts, Round& round, Turn& turn);
// Counts a partition that all members have sent as being folded; no-op before.
// Its shard begins the fold by itself, by the same condition
// (FoldStage::FoldIfComplete).
void BeginFoldIfComplete(RunParts& parts, Round& round, int32_t partition,
                         Instant now);
// A fold was reported, perhaps of an attempt that has been given up since.
void TakeStepFold(RunParts& parts, Round& round, FoldReport report, Turn& turn);
// Computes the statistics of the commit, unless it will be skipped. False:
// they are being computed on the pool.
bool UpdateStatistics(RunParts& parts, Round& round, Turn& turn);

struct PublishedStep {
  CommitRecord record;
  CommitObservation observation;
  // What was not finite, if the step was skipped.
  std::optional<std::string> nonfinite;
};
// Makes the next version from the step, whose statistics must be there, and
// ends its transaction.
PublishedStep PublishStep(RunParts& parts, Round& round, Turn& turn);

}  // namespace cohort
