#include "server/core/run_progress.h"

#include "server/core/optimizer/schedule.h"

namespace cohort {

int64_t SamplesTotal(const RunSettings& settings, const ModelStore& model) {
  if (!model.registered()) return 0;
  return settings.options().epochs * model.model()->plan.train_samples;
}

double LearningRateNow(const RunSettings& settings, const RunLedger& ledger,
                       const ModelStore& model) {
  const int64_t epoch =
      model.registered() ? model.model()->plan.train_samples : 0;
  return LearningRate(settings.options().optimizer,
                      {.seen = ledger.samples(),
                       .epoch = epoch,
                       .total = SamplesTotal(settings, model)});
}

}  // namespace cohort
