#pragma once

#include <cstdint>
#include <vector>

#include "common/ids.h"
#include "common/worker_report.h"
#include "server/core/events/turn.h"
#include "server/core/ledger/share_proposal.h"
#include "server/core/run.h"

namespace cohort {

// --shares=auto: changes the shares as the measured speeds of the workers
// require, by a change of settings as any other.
class AutomaticShares {
 public:
  // A worker's heartbeat; without phases no step has ended since its last.
  void Note(Rank rank, const PhaseSeconds& phases);
  // Requests other shares once every worker has reported often enough under the
  // present ones, and if they shorten the step; see EvenShares.
  void Propose(Run& run, Turn& turn);

 private:
  // Measurements are dropped when these change.
  struct Conditions {
    int64_t policy_epoch = 0;
    std::vector<Incarnation> members;

    friend bool operator==(const Conditions&, const Conditions&) = default;
  };

  Conditions measured_;
  SpeedMeter meter_;
};

}  // namespace cohort
