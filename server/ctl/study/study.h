#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "server/ctl/cluster/programs.h"
#include "server/ctl/study/matrix.h"
#include "server/ctl/study/study_folder.h"

namespace cohort {

struct StudyOptions {
  StudyAxes axes;
  StudyFlags flags;
  std::string out;
  int32_t parallel = 1;
  ClusterPrograms programs;
  // The command as typed, which continues the study.
  std::string command;
};

// Output and control of a running study.
struct StudyIo {
  // Prints a line that stays.
  std::function<void(const std::string&)> say;
  // Shows the progress; may be called repeatedly.
  std::function<void(const std::string&)> progress;
  // Returns false once the study must stop.
  std::function<bool()> go_on;
  const Clock& clock;
};

struct StudyOutcome {
  int64_t runs = 0;
  int64_t done = 0;
  std::vector<std::string> failed;
  bool stopped = false;
};

// Runs everything that is not done yet and writes study.csv from all completed
// runs. A run that fails does not stop the others.
// Errors: InvalidArgument: invalid flags; FailedPrecondition: nothing to run,
//   or the folder is another study's; those of FileSystem.
absl::StatusOr<StudyOutcome> RunStudy(const StudyOptions& options,
                                      const StudyIo& io);

}  // namespace cohort
