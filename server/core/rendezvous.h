#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "common/assignment.h"
#include "common/ids.h"

namespace cohort {

// All rendezvous of one attempt of one step. Contributions are kept, and so
// are results, so that a replacement that replays the step is answered with
// the same bits.
class RendezvousTable {
 public:
  RendezvousTable() = default;
  // Not fixed: `ranks` may contribute, but nothing completes before Fix says
  // which of them are members.
  explicit RendezvousTable(std::vector<Rank> ranks, bool fixed = true);

  struct Outcome {
    // Set once all members have contributed.
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
  Outcome Contribute(const ReduceKey& key, Rank rank, Moments moments);

  struct Completed {
    ReduceKey key;
    Outcome outcome;
  };
  // From now on `members`, in rank order, are whom every rendezvous waits
  // for; what others contributed is forgotten. Returns what is complete now.
  std::vector<Completed> Fix(const std::vector<Rank>& members);

  // True if `rank` waits for the others in some rendezvous.
  bool Waits(Rank rank) const;
  // A lost life waits for nothing any more.
  void Forget(Rank rank);

  struct Pending {
    ReduceKey key;
    Rank rank;
  };
  // Everyone who waits, to be told that the step ends early. Step and attempt
  // of the keys are those of the contributions.
  std::vector<Pending> AllPending() const;

  // Ranks that an incomplete rendezvous lacks; empty if none is open.
  std::vector<Rank> Missing() const;

  // Local forward moments of `rank`, ascending by (layer, call).
  std::vector<CallMoments> ForwardOf(Rank rank) const;

 private:
  struct Entry {
    ReduceKey key;
    // By position in members_.
    std::vector<std::optional<Moments>> contributions;
    std::vector<bool> waiting;
    int32_t missing = 0;
    std::shared_ptr<const Moments> result;
  };
  using Place = std::tuple<int32_t, int32_t, ReducePhase>;

  size_t PositionOf(Rank rank) const;
  // Nobody is missing any more.
  void Complete(Entry& entry, Outcome& outcome) const;

  std::vector<Rank> members_;
  bool fixed_ = true;
  std::map<Place, Entry> entries_;
};

// True if every number is finite.
bool IsFinite(const Moments& moments);

}  // namespace cohort
