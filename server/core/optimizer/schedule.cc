#include "server/core/optimizer/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace cohort {

double LearningRate(const OptimizerOptions& options, int64_t samples,
                    int64_t samples_total) {
  if (options.schedule == ScheduleKind::kConstant || samples_total <= 0) {
    return options.learning_rate;
  }
  const double t = std::min(
      1.0, static_cast<double>(samples) / static_cast<double>(samples_total));
  return options.learning_rate * (1 + std::cos(std::numbers::pi * t)) / 2;
}

}  // namespace cohort
