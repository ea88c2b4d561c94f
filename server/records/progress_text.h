#pragma once

#include <ostream>
#include <string>

#include "absl/strings/string_view.h"
#include "server/core/coordinator.h"

namespace cohort {

// "1150 images/s"; a low rate has a digit after the point.
std::string RateText(double samples_per_second);

// One line: step, epoch, share of the run, loss, speed, time left, newest test
// measure, workers and policy; or, if nothing is being trained, the server's
// sentence about its state.
std::string ProgressText(const StatusView& status, double samples_per_second);

// Prints the measures of a run's last evaluation, one a line; the main measure
// comes last. `model` is the exported file; may be null.
void PrintMeasures(const EvaluationRecord& evaluation,
                   const SharedSnapshot& model, std::ostream& out);

}  // namespace cohort
