#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "server/ctl/cluster/programs.h"
#include "server/ctl/study/matrix.h"
#include "server/ctl/study/recommendation.h"
#include "server/ctl/study/study_folder.h"

namespace cohort {

struct StudyOptions {
  StudyAxes axes;
  StudyFlags flags;
  std::string out;
  int32_t parallel = 1;
  // Percent; absent: found by Summarise.
  std::optional<double> target;
  ClusterPrograms programs;
  // What was typed, for the report.
  std::string command;
};

// What a study says while it goes on.
struct StudyIo {
  // A line that stays.
  std::function<void(const std::string&)> say;
  // How far it is; may be shown again and again.
  std::function<void(const std::string&)> progress;
  // False once it is to be stopped.
  std::function<bool()> go_on;
  const Clock& clock;
};

struct StudyOutcome {
  int64_t runs = 0;
  int64_t done = 0;
  std::vector<std::string> failed;
  bool stopped = false;
  // Absent: no run is done.
  std::optional<std::vector<std::string>> words;
  std::vector<OverallStanding> overall;
};

// Runs what is not done yet and writes study.csv, study.md, report.html and the
// plots from all that is. Runs that fail do not stop the others.
// Errors: InvalidArgument, flags that do not fit; FailedPrecondition, nothing
// to
//   run, or the folder is another study's; those of FileSystem.
absl::StatusOr<StudyOutcome> RunStudy(const StudyOptions& options,
                                      const StudyIo& io);

}  // namespace cohort
