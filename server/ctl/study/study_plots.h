#pragma once

#include <string>
#include <vector>

#include "server/ctl/study/summary.h"

namespace cohort {

struct StudyPlot {
  // The file's name without its folder: "accuracy.svg".
  std::string file;
  // One sentence about what it shows.
  std::string caption;
  std::string svg;
};

// One panel a policy, a row for each order of data and number of workers:
//   measure.svg    test accuracy or mIoU against images per worker
//   gap.svg        batch's own minus moving statistics
//   time.svg       seconds until the target
//   staleness.svg  share of pushes by staleness; only if anything was stale
std::vector<StudyPlot> DrawStudy(const StudySummary& summary);

}  // namespace cohort
