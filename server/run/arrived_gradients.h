#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/ids.h"
#include "server/core/coordinator.h"
#include "server/core/events/effects.h"
#include "server/core/events/requests.h"

namespace cohort {

// Gradients that shards have received and that the coordinator has not taken
// yet, in the order of their arrival for each rank: there is no room for them,
// or, at a data shard, their opening may still be on its way.
//
// A gradient that waits for its opening delays no other, and is refused after
// kOpeningDeadline: the opening may never come, and its stream and all later
// ones of its worker would get no answer.
//
// Thread safety: none.
class ArrivedGradients {
 public:
  static constexpr absl::Duration kOpeningDeadline = absl::Seconds(30);

  // A gradient that the coordinator has refused.
  struct Refusal {
    int32_t shard = 0;
    int64_t ticket = 0;
    absl::Status status;
  };

  explicit ArrivedGradients(int32_t shards) : shards_(shards) {}

  void Add(int32_t shard, RemoteGradient gradient, Instant now);
  // Passes the waiting gradients of `rank` to `core`, until there is no room.
  // Command Take answers those that the core takes; `refused` receives those
  // that it refuses. Returns the number of gradients that wait for room: 0
  // or 1.
  int Offer(Rank rank, Coordinator& core, Instant now, Effects& out,
            std::vector<Refusal>& refused);
  // Ranks with a gradient that has waited for its opening for too long, which
  // Offer refuses. Gradients behind one that waits for room are not looked at.
  std::vector<Rank> Overdue(Instant now) const;

 private:
  struct Entry {
    int32_t shard = 0;
    RemoteGradient gradient;
    Instant since;
    // There is no room. An effect says when there is.
    bool paused = false;
  };

  const int32_t shards_;
  std::map<Rank, std::deque<Entry>> waiting_;
};

}  // namespace cohort
