#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/assignment.h"
#include "common/clock.h"
#include "common/ids.h"
#include "server/core/observation.h"

namespace cohort {

// All rendezvous of one attempt of one step. Contributions are kept, and so
// are results, so that a replacement that replays the step is answered with
// the same bits.
//
// Members may meet in groups: consecutive ones, each group by itself, the last
// of as many as are left.
class RendezvousTable {
 public:
  struct Options {
    // False: `ranks` may contribute, but nothing completes before Fix says
    // which of them are members.
    bool fixed = true;
    // Members of a group; 0: all are one group.
    int32_t group_size = 0;
  };

  RendezvousTable() = default;
  explicit RendezvousTable(std::vector<Rank> ranks)
      : RendezvousTable(std::move(ranks), Options()) {}
  RendezvousTable(std::vector<Rank> ranks, const Options& options);

  struct Outcome {
    // Set once all members of the group have contributed.
    std::shared_ptr<const Moments> result;
    // Who must be answered with it now, ascending.
    std::vector<Rank> answer;
    bool repeated = false;
    // Repeated with other bits.
    bool mismatch = false;
    // The rendezvous is complete with this contribution, and not finite.
    bool nonfinite = false;
  };

  // Contributes for `rank`, which must be a member, to the rendezvous of
  // (key.layer, key.call, key.phase). Channel counts must agree: the caller
  // has checked them against the layout.
  // `now` only for what is observed.
  Outcome Contribute(const ReduceKey& key, Rank rank, Moments moments,
                     Instant now = Instant());

  struct Completed {
    ReduceKey key;
    Outcome outcome;
  };
  // From now on `members`, in rank order, are whom every rendezvous waits
  // for; what others contributed is forgotten. Returns what is complete now.
  std::vector<Completed> Fix(const std::vector<Rank>& members,
                             Instant now = Instant());

  // Calls and phases that somebody has contributed to.
  int64_t size() const { return static_cast<int64_t>(entries_.size()); }
  // What `rank` has in them: how many it waits in, and the bytes of its
  // contributions. Takes time in proportion to size().
  struct Held {
    int64_t waiting = 0;
    int64_t bytes = 0;
  };
  Held HeldOf(Rank rank) const;
  // `rank` has contributed to the rendezvous of `key`.
  bool Has(const ReduceKey& key, Rank rank) const;

  // True if `rank` waits for the others in some rendezvous.
  bool Waits(Rank rank) const;
  // A lost life waits for nothing any more.
  void Forget(Rank rank);

  struct Pending {
    ReduceKey key;
    Rank rank;
  };
  // The members, group by group. Before they are fixed: as if all would be.
  std::vector<std::vector<Rank>> Groups() const;
  bool SameGroup(Rank a, Rank b) const {
    return GroupOf(PositionOf(a)) == GroupOf(PositionOf(b));
  }

  // Everyone who waits, to be told that the step ends early. Step and attempt
  // of the keys are those of the contributions.
  std::vector<Pending> AllPending() const;

  // Ranks that a rendezvous lacks in which others of their group are; empty if
  // none is open.
  std::vector<Rank> Missing() const;

  // Local forward moments of `rank`, ascending by (layer, call).
  std::vector<CallMoments> ForwardOf(Rank rank) const;

  // Of the rendezvous that are complete, in order of completion.
  RendezvousWaits& observed(ReducePhase phase) {
    return phase == ReducePhase::kForward ? forward_ : backward_;
  }

 private:
  struct Entry {
    ReduceKey key;
    // By position in members_.
    std::vector<std::optional<Moments>> contributions;
    std::vector<bool> waiting;
    // When they came; a replacement comes anew.
    std::vector<Instant> since;
    // By group.
    std::vector<int32_t> present;
    std::vector<std::shared_ptr<const Moments>> results;
  };
  using Place = std::tuple<int32_t, int32_t, ReducePhase>;

  // Positions of one group's members: begin to end - 1.
  struct Range {
    size_t begin = 0;
    size_t end = 0;
  };

  size_t PositionOf(Rank rank) const;
  size_t GroupOf(size_t position) const;
  size_t GroupCount() const;
  Range RangeOf(size_t group) const;
  bool IsFull(const Entry& entry, size_t group) const;
  // Nobody of the group is missing any more.
  void Complete(Entry& entry, size_t group, Instant now, Outcome& outcome);
  void Observe(const Entry& entry, Range range, Instant now);

  std::vector<Rank> members_;
  Options options_;
  std::map<Place, Entry> entries_;
  RendezvousWaits forward_;
  RendezvousWaits backward_;
};

// True if every number is finite.
bool IsFinite(const Moments& moments);

}  // namespace cohort
