#include "server/core/optimizer/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace cohort {

double LearningRate(const OptimizerOptions& options,
                    const RunProgress& progress) {
  const double base = options.learning_rate;
  if (progress.total <= 0) return base;
  const auto seen = static_cast<double>(progress.seen);
  const auto epoch = static_cast<double>(progress.epoch);
  const double warmup = options.warmup_epochs * epoch;
  if (seen < warmup) return base * (seen / warmup);
  const double left = static_cast<double>(progress.total) - warmup;
  const double t = left > 0 ? std::min(1.0, (seen - warmup) / left) : 1.0;
  const double last = options.final_learning_rate;
  switch (options.schedule) {
    case ScheduleKind::kConstant:
      return base;
    case ScheduleKind::kStep: {
      const auto reached = std::count_if(
          options.step_epochs.begin(), options.step_epochs.end(),
          [=](double milestone) { return milestone * epoch <= seen; });
      return base * std::pow(options.step_gamma, static_cast<double>(reached));
    }
    case ScheduleKind::kCosine:
      return last + (base - last) * (1 + std::cos(std::numbers::pi * t)) / 2;
    case ScheduleKind::kPolynomial:
      return last + (base - last) * std::pow(1 - t, options.poly_power);
  }
  return base;
}

}  // namespace cohort
