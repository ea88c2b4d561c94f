#pragma once

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/strings/string_view.h"
#include "server/core/coordinator.h"

namespace cohort {

// "1150 images/s"; a slow one has a digit behind the point.
std::string RateText(double samples_per_second);

// One line: step, epoch, loss, speed, time left, newest test measure, workers
// and policy; or, if nothing is trained at this moment, the server's own
// sentence about it.
std::string ProgressText(const StatusView& status, double samples_per_second);

// What the last evaluation of a run measured, in lines; the measure that counts
// stands last. `model`: what was written; may be null.
void PrintMeasures(const EvaluationRecord& evaluation,
                   const SharedSnapshot& model, std::ostream& out);

// A line of a terminal that is written again and again.
class ProgressLine {
 public:
  // Replaces the line, cut to `columns`.
  void Show(std::ostream& out, absl::string_view text, int columns);
  // Blanks it, so that an ordinary line can be printed in its place.
  void Clear(std::ostream& out);

 private:
  size_t width_ = 0;
};

// Columns of the terminal behind stdout; 80 if it does not say.
int TerminalColumns();

}  // namespace cohort
