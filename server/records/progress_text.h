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

// A terminal line that is rewritten repeatedly.
class ProgressLine {
 public:
  // Replaces the line, cut to `columns`.
  void Show(std::ostream& out, absl::string_view text, int columns);
  // Blanks the line, so that an ordinary line can be printed in its place.
  void Clear(std::ostream& out);

 private:
  size_t width_ = 0;
};

// Columns of stdout's terminal; 80 if unknown.
int TerminalColumns();

}  // namespace cohort
