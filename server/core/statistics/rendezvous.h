#pragma once

#include <cstddef>
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
#include "server/core/statistics/kept_forward.h"
#include "server/core/statistics/moving_statistics.h"
#include "server/core/statistics/observation.h"

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
// A forward rendezvous is complete when all members have contributed, or when
// CompleteWith completes it with those that have. A backward rendezvous is
// complete when exactly the members of its forward call have contributed: the
// gradient of a member's input depends on the sums of all of them.
//
// Members may meet in groups: consecutive ones, each group by itself, the last
// of as many as are left. Below, a group is at rest if none of its members
// computes: each waits for an answer or has closed its push, and no fold is
// running. Then no contribution can come.
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
  // Entries point to each other.
  RendezvousTable(const RendezvousTable&) = delete;
  RendezvousTable& operator=(const RendezvousTable&) = delete;
  RendezvousTable(RendezvousTable&&) = default;
  RendezvousTable& operator=(RendezvousTable&&) = default;

  // ---- contributions

  struct Outcome {
    // Set once all members of the rendezvous have contributed.
    std::shared_ptr<const Moments> result;
    // The ranks to answer with it now, ascending.
    std::vector<Rank> answer;
    // The rank has not contributed to it before, in any incarnation; its
    // present incarnation has not.
    bool first = false;
    bool fresh = false;
    bool repeated = false;
    // Repeated with other bits.
    bool mismatch = false;
    // The rendezvous is complete with this contribution, and not IsUsable.
    bool nonfinite = false;
    // To be run, and handed to Folded. Until then nothing completes.
    std::optional<MomentsFold> fold;
  };

  // Contributes for `rank`, which must be a member, to the rendezvous of
  // key.place. Channel counts must agree: the caller has checked them. A
  // contribution to a rendezvous that was completed without the rank is not
  // answered, and dooms the group's part in the attempt.
  // `now` only for what is observed.
  Outcome Contribute(const ReduceKey& key, Rank rank, Moments moments,
                     Instant now = Instant(),
                     const std::vector<int64_t>& extents = {});

  // A fold has ended. One of another step or attempt is ignored.
  Outcome Folded(MomentsFold done, Instant now = Instant());

  // `rank` has closed its push: it contributes nothing more, unless it is lost
  // and a replacement repeats the step.
  void NoteClosed(Rank rank);
  // Resets the state of its push, but keeps its contributions.
  void NoteReopened(Rank rank);
  // `rank` is lost: it waits for nothing any more. What it contributed stays.
  void Forget(Rank rank);

  struct Completed {
    ReduceKey key;
    Outcome outcome;
  };
  // From now on `members`, in rank order, are whom every rendezvous waits
  // for; what others contributed is forgotten. Returns what is complete now.
  std::vector<Completed> Fix(const std::vector<Rank>& members,
                             Instant now = Instant());

  // ---- members that do not come

  // The groups that have come to rest since the last call, and are at rest.
  std::vector<size_t> TakeRested();
  // All groups are at rest. O(1).
  bool AllAtRest() const { return resting_ == groups_.size(); }
  // Some member of the group waits.
  bool AnyWaits(size_t group) const { return groups_[group].waiting > 0; }
  // A member of the group has reached a rendezvous that was completed without
  // it. The attempt must be repeated.
  bool IsDoomed(size_t group) const { return groups_[group].late.has_value(); }
  bool AnyDoomed() const { return doomed_ > 0; }
  // Registered forward calls that members of the group wait in, in the order of
  // registration.
  std::vector<CallPlace> OpenForward(size_t group) const;
  // Completes one of them with the contributions that are there. The group must
  // be at rest.
  Outcome CompleteWith(const CallPlace& place, size_t group,
                       Instant now = Instant());
  // The first contribution, by rank, that came too late.
  struct Late {
    Rank rank;
    CallPlace place;
  };
  std::optional<Late> FirstLate() const;
  // The calls that each member has contributed to, in the order of its first
  // contributions; members in rank order.
  std::vector<std::vector<CallPlace>> Sequences() const;

  // ---- what members have contributed

  // How many rendezvous `rank` waits in, and the bytes that it has contributed
  // to all of them, folded or not: results are kept, and no larger.
  struct Held {
    int64_t waiting = 0;
    int64_t bytes = 0;
  };
  Held HeldOf(Rank rank) const;
  // `rank` has contributed to this rendezvous.
  bool Has(const CallPlace& place, Rank rank) const;
  // `rank` is a member of this rendezvous, and it is complete.
  bool IsAnswered(const CallPlace& place, Rank rank) const;
  // The number of channels of the contributions to it. Absent: there are none.
  std::optional<size_t> ChannelsOf(const CallPlace& place) const;

  // The rendezvous that a rank contributed to in this attempt.
  struct Made {
    // By all incarnations of the rank.
    int64_t by_all = 0;
    // By the present one, and its registered forward calls by (part, layer).
    int64_t contributions = 0;
    std::map<std::pair<int32_t, int32_t>, int32_t> calls;
  };
  Made MadeBy(Rank rank) const;
  // Its present incarnation has closed its push.
  bool ClosedByPresent(Rank rank) const;

  // Members that made different numbers of calls of one registered layer.
  struct Uneven {
    CallPlace place;
    Rank fewer;
    int32_t fewer_calls = 0;
    Rank more;
    int32_t more_calls = 0;
  };
  // The first registered (part, layer, site) that some members called, but not
  // as often as others. Calls are paired by number, so members may leave out
  // all calls or none.
  std::optional<Uneven> FindUneven() const;
  // Members whose inputs of one call have different extents.
  struct OtherExtents {
    CallPlace place;
    Rank rank;
    std::vector<int64_t> extents;
    Rank other;
    std::vector<int64_t> other_extents;
  };
  // The first one of a layer that is called more than once, if some member
  // left out some call: the calls may be paired wrongly. Calls with a name are
  // not compared.
  std::optional<OtherExtents> FindOtherExtents() const;

  // ---- waits

  // True if `rank` waits for the others in some rendezvous.
  bool Waits(Rank rank) const { return waits_[PositionOf(rank)] > 0; }
  // Those in which `rank` waits, ascending.
  std::vector<CallPlace> WaitsOf(Rank rank) const;
  // One of them, the latest if it still waits there; null if there is none.
  const CallPlace* WaitOf(Rank rank) const;

  struct Pending {
    ReduceKey key;
    Rank rank;
  };
  // The members, group by group. Before they are fixed: as if all would be.
  std::vector<std::vector<Rank>> Groups() const;

  // Everyone who waits, to be told that the step ends early. Step and attempt
  // of the keys are those of the contributions.
  std::vector<Pending> AllPending() const;

  // Members that compute while others of their group wait.
  std::vector<Rank> Missing() const;

  // ---- results

  // The forward moments that are kept, out of the table. Calls that are not
  // registered have none.
  KeptForward TakeForward();
  // The combined moments of the registered forward calls. Empty if members
  // meet in groups, because then no rendezvous has combined all of them. All
  // must be complete.
  CombinedMoments ForwardResults() const;

  // Waits in the complete rendezvous, in order of completion.
  RendezvousWaits& observed(ReducePhase phase) {
    return phase == ReducePhase::kForward ? forward_ : backward_;
  }

 private:
  // One member's moments.
  struct Contribution {
    bool present = false;
    // It came after the rendezvous was completed without the rank.
    bool late = false;
    // The last incarnation that sent it, by Member::incarnation.
    int32_t incarnation = -1;
    // Index into Entry::extents.
    int32_t extents = 0;
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
  // One group's part of an entry.
  struct Meeting {
    int32_t present = 0;
    // Contributors that wait, late ones included.
    int32_t waiting = 0;
    // Forward only: completed with the contributions that were present.
    bool partial = false;
    Fold fold;
    std::shared_ptr<const Moments> result;
  };

  struct Entry {
    ReduceKey key;
    // Backward only: its forward call. Null if no member has made it.
    const Entry* forward = nullptr;
    size_t channels = 0;
    // Contributions of all groups.
    size_t present = 0;
    // By position in members_.
    std::vector<Contribution> contributions;
    // Folded moments, by position; empty unless some are kept.
    std::vector<std::optional<Moments>> kept;
    std::vector<bool> waiting;
    // When they came; a replacement comes anew.
    std::vector<Instant> since;
    // By group.
    std::vector<Meeting> meetings;
    // The different extents of the contributions.
    std::vector<std::vector<int64_t>> extents;
  };
  // One member, besides its place in the entries.
  struct Member {
    // Contributions in the order in which they came first.
    std::vector<const Entry*> made;
    // Numbers the incarnations of this attempt, and how many contributions the
    // present one has made.
    int32_t incarnation = 0;
    int64_t made_by_it = 0;
    int64_t bytes = 0;
    bool closed = false;
    // The incarnation that closed the push.
    int32_t closed_by = -1;
    // The entry in which it waits, or waited last.
    const Entry* last = nullptr;
  };
  struct Group {
    // Members that compute, and folds that are running.
    int32_t busy = 0;
    // Members that wait.
    int32_t waiting = 0;
    // Position of its lowest rank.
    std::optional<Late> late;
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
  Entry& EntryOf(const ReduceKey& key);
  // The entry of the forward call of a backward one, or null.
  const Entry* ForwardOf(const CallPlace& place) const;
  // Some members left out a registered call that others made.
  bool AnySkipped() const;
  // How many of the calls of (part, layer, site) the member has made.
  int32_t CallsOf(const CallPlace& place, size_t position) const;
  // It is known who the members of the group's meeting are, or will be.
  static bool KnowsMembers(const Entry& entry, size_t group);
  // The member at `position` is one of them.
  bool IsIn(const Entry& entry, size_t position) const;
  void NoteRepeated(Entry& entry, size_t position, Instant now,
                    Outcome& outcome);
  void NoteLate(Entry& entry, size_t position, Instant now);
  static int32_t ExtentsIn(Entry& entry, const std::vector<int64_t>& extents);
  void NoteMade(Entry& entry, size_t position, Outcome& outcome);
  void SetWaiting(Entry& entry, size_t position, bool waiting);
  void ChangeBusy(size_t group, int32_t change);
  // Sets the counts of all groups from the members.
  void CountGroups();
  // Folds what has come without a gap, and completes the rendezvous if that is
  // all. A long fold becomes a job of the outcome.
  void Extend(Entry& entry, size_t group, Instant now, Outcome& outcome);
  // Moves the moments of the next `ready` contributions into a job.
  void StartJob(Entry& entry, size_t group, size_t ready, Outcome& outcome);
  // The next position from `at` on whose member is in the meeting.
  size_t NextIn(const Entry& entry, size_t at, size_t end) const;
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
  std::vector<Member> states_;
  std::vector<Group> groups_;
  // Groups that have come to rest since they were asked for.
  std::vector<size_t> rested_;
  // Groups at rest, and doomed ones.
  size_t resting_ = 0;
  size_t doomed_ = 0;
  RendezvousWaits forward_;
  RendezvousWaits backward_;
};

inline bool IsForward(const CallPlace& place) {
  return place.phase == ReducePhase::kForward;
}
// A call of a layer of the model.
inline bool IsRegistered(const CallPlace& place) { return place.layer >= 0; }

}  // namespace cohort
