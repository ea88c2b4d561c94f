#pragma once

#include "absl/status/statusor.h"
#include "common/push.h"
#include "server/core/events/turn.h"
#include "server/core/membership/rank_table.h"
#include "server/core/step/run_parts.h"
#include "server/core/step/step_driver.h"

// Messages of pushes that are decided, or never were given.
namespace cohort {

// Whether `key` is that of the training assignment of `worker`. False: of an
// older push of this rank, which changes nothing any more.
// Errors: FailedPrecondition: it was never given.
absl::StatusOr<bool> IsUnderWay(const RunParts& parts, const Worker& worker,
                                const PushKey& key);

// Answers the closing of an older push: with its verdict, marked as a duplicate
// if it was answered before.
void AnswerOldPush(RunParts& parts, const StepDriver& driver,
                   const Worker& worker, const PushKey& key, Turn& turn);

}  // namespace cohort
