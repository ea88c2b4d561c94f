#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "common/moments.h"
#include "server/core/kept_forward.h"
#include "server/core/moving_statistics.h"
#include "server/core/observation.h"
#include "server/core/policy/call_agreement.h"

namespace cohort {

// A fold of moments that is too long for the lock: a value, so that any thread
// can run it.
struct MomentsFold {
  ReduceKey key;
  size_t group = 0;
  // The sum so far, and the moments to add to it, in rank order.
  Moments total;
  std::vector<Moments> parts;
};

// Adds the parts to the total, in their order. A pure function of the job but
// for the parts, which the result carries on.
// Thread safety: safe.
MomentsFold RunMomentsFold(MomentsFold job);

// All rendezvous of one attempt of one step. Results are kept, and a checksum
// of each contribution, so that a replacement that replays the step is answered
// with the same bits. Contributions themselves are given up as soon as they are
// folded, unless the moving statistics need them: of 1,000 ranks, those of
// ResNet-50 are 850 MB.
//
// Members may meet in groups: consecutive ones, each group by itself, the last
// of as many as are left.
class RendezvousTable {
 public:
  enum class Keep { kNone, kFirst, kAll };
  struct Options {
    // False: `ranks` may contribute, but nothing completes before Fix says
    // which of them are members.
    bool fixed = true;
    // Members of a group; 0: all are one group.
    int32_t group_size = 0;
    // The members whose forward moments are kept until the step ends.
    Keep keep = Keep::kAll;
    // Channels times ranks that are folded under the caller's lock; more go
    // into a MomentsFold.
    int64_t inline_max = int64_t{64} << 10;
  };

  RendezvousTable() = default;
  explicit RendezvousTable(std::vector<Rank> ranks)
      : RendezvousTable(std::move(ranks), Options()) {}
  RendezvousTable(std::vector<Rank> ranks, const Options& options);

  struct Outcome {
    // Set once all members of the group have contributed.
    std::shared_ptr<const Moments> result;
    // The ranks to answer with it now, ascending.
    std::vector<Rank> answer;
    bool repeated = false;
    // Repeated with other bits.
    bool mismatch = false;
    // The rendezvous is complete with this contribution, and not IsUsable.
    bool nonfinite = false;
    // To be run, and handed to Folded. Until then nothing completes.
    std::optional<MomentsFold> fold;
  };

  // Contributes for `rank`, which must be a member, to the rendezvous of
  // (key.layer, key.call, key.phase). Channel counts must agree: the caller
  // has checked them against the layout.
  // `now` only for what is observed.
  Outcome Contribute(const ReduceKey& key, Rank rank, Moments moments,
                     Instant now = Instant());

  // A fold has ended. One of another step or attempt is ignored.
  Outcome Folded(MomentsFold done, Instant now = Instant());

  struct Completed {
    ReduceKey key;
    Outcome outcome;
  };
  // From now on `members`, in rank order, are whom every rendezvous waits
  // for; what others contributed is forgotten. Returns what is complete now.
  std::vector<Completed> Fix(const std::vector<Rank>& members,
                             Instant now = Instant());

  // How many rendezvous `rank` waits in, and the bytes that it has contributed
  // to all of them, folded or not: results are kept, and no larger.
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

  // The forward moments that are kept, out of the table.
  KeptForward TakeForward();
  // The combined moments of the forward calls, in the same order. Empty if
  // members meet in groups, because then no rendezvous has combined all of
  // them. All must be complete.
  CombinedMoments ForwardResults() const;

  // Waits in the complete rendezvous, in order of completion.
  RendezvousWaits& observed(ReducePhase phase) {
    return phase == ReducePhase::kForward ? forward_ : backward_;
  }

 private:
  // One member's moments.
  struct Contribution {
    bool present = false;
    // Recognises repetitions.
    uint64_t checksum = 0;
    int64_t bytes = 0;
    // Until they are folded.
    std::optional<Moments> moments;
  };
  // The fold of one group, in rank order, up to the first member that is
  // missing. Work done on arrival does not delay the members when the last
  // contribution comes.
  struct Fold {
    // The first member that is not in it.
    size_t end = 0;
    Moments total;
    // A job has the total, and the moments of so many members from `end` on.
    size_t running = 0;
  };

  struct Entry {
    ReduceKey key;
    // By position in members_.
    std::vector<Contribution> contributions;
    // Folded moments, by position; empty unless some are kept.
    std::vector<std::optional<Moments>> kept;
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
  void SetWaiting(Entry& entry, size_t position, bool waiting);
  // Folds what has come without a gap, and completes the rendezvous if that is
  // all. A long fold becomes a job of the outcome.
  void Extend(Entry& entry, size_t group, Instant now, Outcome& outcome);
  // Keeps the moments of a member that is folded, or gives them up.
  void Retain(Entry& entry, size_t position, Moments folded) const;
  void Complete(Entry& entry, size_t group, Instant now, Outcome& outcome);
  void Observe(const Entry& entry, Range range, Instant now);

  // Ascending.
  std::vector<Rank> members_;
  Options options_;
  std::map<CallPlace, Entry> entries_;
  // By position in members_: in how many rendezvous it waits.
  std::vector<int32_t> waits_;
  // By position: bytes contributed.
  std::vector<int64_t> bytes_;
  size_t waiting_count_ = 0;
  int64_t open_count_ = 0;
  RendezvousWaits forward_;
  RendezvousWaits backward_;
};

}  // namespace cohort
