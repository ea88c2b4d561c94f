#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "common/push.h"
#include "server/core/events/effects.h"
#include "server/core/statistics/statistics_sets.h"

namespace cohort {

// One event on its way through the state machine: its time, its effects, and
// what the parts ask of the coordinator. They never call back; the coordinator
// does what is asked, and what follows from it, before the event ends
// (Coordinator::Settle).
struct Turn {
  // A push that is decided. Its verdict also carries the rank's next
  // assignment, which is known only when everything has settled.
  struct Answer {
    Rank rank;
    Incarnation incarnation;
    PushKey key;
    PushVerdict verdict;
    // Partitions whose weights of verdict.version go to this push.
    int32_t weights_partitions = 0;
    // Null: the verdict brings no moving statistics.
    std::shared_ptr<const StatisticsSets> statistics;
    // The next assignment goes to the worker's session first: it may have given
    // up the stream of its push.
    bool session_first = false;
  };
  // A rank whose present incarnation must end, as if it were lost.
  struct Fencing {
    Rank rank;
    std::string reason;
  };
  struct End {
    RunOutcome outcome = RunOutcome::kFinished;
    std::string reason;
  };

  Instant now;
  Effects& out;
  std::vector<Answer> answers;
  std::optional<Fencing> fencing;
  std::optional<End> end;
  // The present version is one to write a checkpoint of.
  bool checkpoint = false;
  // More than a message has arrived: workers may have something to do now.
  bool changed = false;
  // Those who wait do so for someone else now, or for longer.
  bool repeat_waits = false;
};

}  // namespace cohort
