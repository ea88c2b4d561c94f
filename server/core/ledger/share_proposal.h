#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "common/ids.h"
#include "server/core/ledger/step_shares.h"

namespace cohort {

// Seconds of the ranks' own work in a step, as their heartbeats report them.
class SpeedMeter {
 public:
  // Reports of a rank that a decision is based on: 12 s of short steps, at a
  // heartbeat every 0.8 s.
  static constexpr size_t kReports = 15;

  // The first since Reset is ignored: it may be of steps before.
  void Note(Rank rank, double seconds);
  void Reset() { reports_.clear(); }
  // The lower quartiles of `ranks`, once each has made enough reports, which
  // are then used up: no report is part of two decisions.
  //
  // Disturbances only make a step longer, so the lower reports tell the speed:
  // a worker counts as slower once 12 of its 15 reports are. With one report in
  // 20 disturbed, the median of 7 misleads two of 100 simulated cohorts, and
  // with one in 5 nearly all; this rule none of 10000, and three.
  std::optional<std::vector<double>> Take(const std::vector<Rank>& ranks);

 private:
  struct Reports {
    bool ignored_first = false;
    std::vector<double> seconds;
  };
  std::map<Rank, Reports> reports_;
};

// The dead band of EvenShares: a step must become shorter by this part. Noise
// and rounding to whole samples change less.
inline constexpr double kShareGain = 0.1;

// The samples of a step for each worker with which all compute equally long, as
// far as their most allows. Absent if they shorten the step by less than
// kShareGain, or if a worker has no samples, or its seconds are unknown (0).
//
// A worker's time is taken as proportional to its samples. If a part of it is
// not, each proposal corrects too little, never too much, so a sequence of them
// does not oscillate.
//
// `seconds`: of each worker's own work in a step under the rule `now`; the
// other arguments are those of ShareStep.
std::optional<std::vector<int64_t>> EvenShares(
    const std::vector<int64_t>& batch_sizes, int64_t global_batch,
    const ShareRule& now, const std::vector<double>& seconds);

}  // namespace cohort
