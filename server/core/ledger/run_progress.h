#pragma once

#include <cstdint>

#include "server/core/ledger/run_ledger.h"
#include "server/core/ledger/run_settings.h"
#include "server/core/model/model_store.h"

namespace cohort {

// Samples of the whole run; 0 before a model is registered, and where the
// workers bring their own data.
int64_t SamplesTotal(const RunSettings& settings, const ModelStore& model);

// The same for people. A run that ends by its number of steps has no number of
// samples: it is estimated from those so far; 0 before the first step.
int64_t PlannedSamples(const RunSettings& settings, const RunLedger& ledger,
                       const ModelStore& model);

// The learning rate as the schedule has it after what the ledger has counted,
// or, where the workers send it, that of the last commit. With local steps it
// is the outer optimizer's, which no schedule changes.
double LearningRateNow(const RunSettings& settings, const RunLedger& ledger,
                       const ModelStore& model);

// With local steps: what the schedule multiplies the workers' own rate by.
double LocalRateFactor(const RunSettings& settings, const RunLedger& ledger,
                       const ModelStore& model);

}  // namespace cohort
