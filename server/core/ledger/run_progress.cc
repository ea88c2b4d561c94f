#include "server/core/ledger/run_progress.h"

#include "server/core/optimizer/schedule.h"

namespace cohort {

namespace {

// The workers bring their own data, so progress is in steps.
RunProgress StepProgress(const RunSettings& settings, const ModelStore& model) {
  return {.seen = model.version().value(),
          .total = settings.options().max_steps};
}

}  // namespace

int64_t SamplesTotal(const RunSettings& settings, const ModelStore& model) {
  if (!model.registered()) return 0;
  return settings.options().epochs * model.model()->plan.train_samples;
}

int64_t PlannedSamples(const RunSettings& settings, const RunLedger& ledger,
                       const ModelStore& model) {
  const int64_t by_data = SamplesTotal(settings, model);
  const int64_t steps_max = settings.options().max_steps;
  const int64_t steps = model.version().value();
  if (steps_max == 0 || steps == 0) return by_data;
  const auto by_steps = static_cast<int64_t>(
      static_cast<double>(ledger.samples) / static_cast<double>(steps) *
      static_cast<double>(steps_max));
  const bool ends_with_data = by_data > 0 && by_data < by_steps;
  return ends_with_data ? by_data : by_steps;
}

namespace {

// As the schedule has it.
double ScheduledRate(const RunSettings& settings, const RunLedger& ledger,
                     const ModelStore& model) {
  const OptimizerOptions& optimizer = settings.options().optimizer;
  if (model.registered() && model.model()->plan.own_data) {
    return LearningRate(optimizer, StepProgress(settings, model));
  }
  const int64_t epoch =
      model.registered() ? model.model()->plan.train_samples : 0;
  return LearningRate(optimizer, {.seen = ledger.samples,
                                  .epoch = epoch,
                                  .total = SamplesTotal(settings, model)});
}

}  // namespace

double LearningRateNow(const RunSettings& settings, const RunLedger& ledger,
                       const ModelStore& model) {
  if (ledger.sent_learning_rate.has_value()) return *ledger.sent_learning_rate;
  if (model.registered() && model.model()->plan.rates_by_workers) return 0;
  if (settings.policy().local_steps > 0) {
    return settings.options().optimizer.learning_rate;
  }
  return ScheduledRate(settings, ledger, model);
}

double LocalRateFactor(const RunSettings& settings, const RunLedger& ledger,
                       const ModelStore& model) {
  return ScheduledRate(settings, ledger, model) /
         settings.options().optimizer.learning_rate;
}

}  // namespace cohort
