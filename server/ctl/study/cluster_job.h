#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "server/ctl/cluster/programs.h"
#include "server/ctl/study/matrix.h"
#include "server/ctl/study/study_folder.h"
#include "server/ctl/study/study_schedule.h"

namespace cohort {

// The flags of a run's server, and of its workers: first those that all runs
// share, then those of this run.
std::vector<std::string> ServerFlags(const StudyRun& run,
                                     const StudyFlags& flags,
                                     const std::string& results_dir);
std::vector<std::string> WorkerFlags(const StudyRun& run,
                                     const StudyFlags& flags);

// Errors: InvalidArgument naming a flag that the study itself sets, or
//   --reference_images without a learning rate to scale.
absl::Status CheckFlags(const StudyFlags& flags);

struct ClusterJobOptions {
  ClusterPrograms programs;
  StudyFlags flags;
};

// Starts a run as processes of this machine. Their output goes into server.log
// and worker-N.log of the run's folder, which is emptied first. A worker that
// dies ends the run. Once the run is over and its results can be read, it is
// marked as done. Its model is deleted, because a study needs only numbers.
//
// `folder` and `clock` must outlive the job.
// Errors: those of StudyFolder, LocalCluster::Start and of opening the logs.
absl::StatusOr<std::unique_ptr<StudyJob>> StartClusterJob(
    const StudyRun& run, const ClusterJobOptions& options, StudyFolder& folder,
    const Clock& clock);

}  // namespace cohort
