#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/assignment.h"
#include "common/clock.h"
#include "common/ids.h"
#include "server/core/observation.h"
#include "server/core/policy/call_agreement.h"

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
  bool Waits(Rank rank) const { return waits_[PositionOf(rank)] > 0; }
  // How many ranks do.
  size_t waiting_count() const { return waiting_count_; }
  // Rendezvous of a group that some of it are in, but not all.
  int64_t open_count() const { return open_count_; }
  // Those in which `rank` waits, ascending.
  std::vector<CallPlace> WaitsOf(Rank rank) const;
  // Open ones of its group that lack `rank`, ascending.
  std::vector<CallPlace> LackedBy(Rank rank) const;
  // A lost life waits for nothing any more.
  void Forget(Rank rank);

  struct Pending {
    ReduceKey key;
    Rank rank;
  };
  // The members, group by group. Before they are fixed: as if all would be.
  std::vector<std::vector<Rank>> Groups() const;
  size_t GroupOf(Rank rank) const { return GroupAt(PositionOf(rank)); }

  // Everyone who waits, to be told that the step ends early. Step and attempt
  // of the keys are those of the contributions.
  std::vector<Pending> AllPending() const;

  // A forward call whose rendezvous do not match what all members count.
  struct Miscounted {
    CallPlace place;
    // The groups' members that count it without having met in it, or that have
    // met in it without counting it, ascending. Not empty.
    std::vector<Rank> at_fault;
  };
  // Compares the rendezvous with `counts`, the calls by layer that every member
  // says it made. All must be complete. Groups meet by themselves, so equal
  // counts do not show that one of them never met. A call that no group has met
  // in is not noticed: it changes nothing.
  std::optional<Miscounted> FindMiscounted(
      const std::vector<int32_t>& counts) const;

  // Ranks that a rendezvous lacks in which others of their group are; empty if
  // none is open.
  std::vector<Rank> Missing() const;

  // Local forward moments of `rank`, ascending by (layer, call), out of the
  // table: it answers no repetition of theirs any more.
  std::vector<CallMoments> TakeForwardOf(Rank rank);
  // What all members have got in the forward calls, in the same order; empty if
  // they meet in groups, as nobody got the moments of all then. All must be
  // complete.
  std::vector<std::shared_ptr<const Moments>> ForwardResults() const;

  // Of the rendezvous that are complete, in order of completion.
  RendezvousWaits& observed(ReducePhase phase) {
    return phase == ReducePhase::kForward ? forward_ : backward_;
  }

 private:
  // Of a group, in rank order: as far as nobody is missing. Work that is done
  // on arrival does not hold everybody up when the last one comes.
  struct Fold {
    // The first member that is not in it.
    size_t end = 0;
    Moments total;
  };

  struct Entry {
    ReduceKey key;
    // By position in members_.
    std::vector<std::optional<Moments>> contributions;
    std::vector<bool> waiting;
    // When they came; a replacement comes anew.
    std::vector<Instant> since;
    // By group.
    std::vector<int32_t> present;
    std::vector<Fold> folds;
    std::vector<std::shared_ptr<const Moments>> results;
  };
  // Positions of one group's members: begin to end - 1.
  struct Range {
    size_t begin = 0;
    size_t end = 0;
  };

  size_t PositionOf(Rank rank) const;
  size_t GroupAt(size_t position) const;
  size_t GroupCount() const;
  Range RangeOf(size_t group) const;
  bool IsFull(const Entry& entry, size_t group) const;
  void SetWaiting(Entry& entry, size_t position, bool waiting);
  void Extend(Entry& entry, size_t group);
  // Nobody of the group is missing any more.
  void Complete(Entry& entry, size_t group, Instant now, Outcome& outcome);
  void Observe(const Entry& entry, Range range, Instant now);

  // Ascending.
  std::vector<Rank> members_;
  Options options_;
  std::map<CallPlace, Entry> entries_;
  // By position in members_: in how many rendezvous it waits.
  std::vector<int32_t> waits_;
  size_t waiting_count_ = 0;
  int64_t open_count_ = 0;
  RendezvousWaits forward_;
  RendezvousWaits backward_;
};

// True if every number is finite.
bool IsFinite(const Moments& moments);

}  // namespace cohort
