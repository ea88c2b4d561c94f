#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "common/model_layout.h"
#include "server/core/statistics/moving_statistics.h"

// Observations of a commit, for metrics and pages; never used for decisions.
namespace cohort {

// The rendezvous of one phase.
struct RendezvousWaits {
  // One entry for each member and rendezvous; 0 for the last to come.
  std::vector<absl::Duration> waits;
  // The rank that came last, one entry for each rendezvous.
  std::vector<Rank> last;
};

// How far one worker's batch means are from the combined ones.
struct LayerDrift {
  int32_t layer = 0;
  // See Drift; the largest over calls and workers.
  double ratio = 0;
};

struct CommitObservation {
  // For each push in it: the time from its closing message to the commit.
  std::vector<absl::Duration> barrier_waits;
  // The rank that closed last; absent if the commit has one push.
  std::optional<Rank> last_arrival;
  // From the first partition that was there of all pushes to the commit.
  absl::Duration aggregation;
  RendezvousWaits forward;
  RendezvousWaits backward;
  // The drift of a single push, ascending by layer; empty where this commit was
  // not sampled. That of a synchronous step is measured later (effect
  // MeasureDrift).
  std::vector<LayerDrift> drift;
};

// Commits between two whose drift is computed: it reads the moments of all
// calls once more.
inline constexpr int64_t kDriftEvery = 16;
// The commit on top of this version is one of them.
inline bool MeasuresDrift(Version version) {
  return version.value() % kDriftEvery == 0;
}

// The root of the mean over channels of (mean - m)^2 / (variance + epsilon),
// with the batch's mean and the reference's m and variance: by how many
// standard deviations a worker's batch is off. 0 for a batch of no elements.
double Drift(const Moments& batch, const std::vector<double>& mean,
             const std::vector<double>& variance, double epsilon);

// Drift in all calls of a synchronous step: each worker against all of them
// combined. Empty for fewer than two workers. `ranks` have the same calls.
std::vector<LayerDrift> StepDrift(const std::vector<BatchNormSpec>& layers,
                                  const std::vector<RankMoments>& ranks);

// Drift of one push against the moving statistics.
std::vector<LayerDrift> PushDrift(const std::vector<BatchNormSpec>& layers,
                                  const std::vector<CallMoments>& calls,
                                  const std::vector<LayerStatistics>& moving);

}  // namespace cohort
