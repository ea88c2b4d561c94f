#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "common/moments.h"
#include "server/core/statistics/kept_forward.h"
#include "server/core/statistics/member_calls.h"
#include "server/core/statistics/member_groups.h"
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
class RendezvousTable {
 public:
  enum class Keep { kNone, kFirst, kAll };
  struct Options {
    // False: `ranks` may contribute, but nothing completes before DropOthers
    // says which of them are members.
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

  // Their groups, and which of them compute.
  const MemberGroups& members() const { return members_; }
  const MemberCalls& calls() const { return calls_; }

  // ---- contributions

  struct Outcome {
    // Set once all members of the rendezvous have contributed.
    std::shared_ptr<const Moments> result;
    // The ranks to answer with it now, ascending.
    std::vector<Rank> answer;
    // The rank's present incarnation has not contributed to it before; no
    // earlier one has, unless it is repeated.
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
  void NoteReopened(Rank rank) { SetAtRest(rank, false); }
  // `rank` waits for something else, and contributes nothing before it has it.
  void SetAtRest(Rank rank, bool rests);
  // `rank` is lost: it waits for nothing any more. What it contributed stays.
  void Forget(Rank rank);

  struct Completed {
    ReduceKey key;
    Outcome outcome;
  };
  // From now on `members`, in rank order, are whom every rendezvous waits
  // for; what others contributed is forgotten. Returns what is complete now.
  std::vector<Completed> DropOthers(const std::vector<Rank>& members,
                                    Instant now = Instant());

  // ---- members that do not come

  // As MemberGroups::TakeRested.
  std::vector<size_t> TakeRested() { return members_.TakeRested(); }
  // A member of the group has reached a rendezvous that was completed without
  // it. The attempt must be repeated.
  bool IsDoomed(size_t group) const { return late_[group].has_value(); }
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

  // ---- waits

  // True if `rank` waits for the others in some rendezvous.
  bool Waits(Rank rank) const {
    return members_.waits(members_.PositionOf(rank)) > 0;
  }
  // Those in which `rank` waits, ascending.
  std::vector<CallPlace> WaitsOf(Rank rank) const;
  // One of them, the latest if it still waits there; null if there is none.
  const CallPlace* WaitOf(Rank rank) const;

  struct Pending {
    ReduceKey key;
    Rank rank;
  };
  // All that wait, to be notified that the step ends early. Step and attempt
  // of the keys are those of the contributions.
  std::vector<Pending> AllPending() const;

  // ---- what was contributed

  // What `rank` has contributed to all of them, folded or not: results are
  // kept, and no larger.
  int64_t BytesOf(Rank rank) const {
    return states_[members_.PositionOf(rank)].bytes;
  }
  // `rank` is a member of this rendezvous, and it is complete.
  bool IsAnswered(const CallPlace& place, Rank rank) const;
  // The number of channels of the contributions to it. Absent: there are none.
  std::optional<size_t> ChannelsOf(const CallPlace& place) const;
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
    bool waiting = false;
    // When it came; a replacement contributes again.
    Instant since;
    // Recognises repetitions.
    uint64_t checksum = 0;
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
    // The number of members from `end` on whose moments a job has, with the
    // total; 0 if no job runs.
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
    // By position in members_.
    std::vector<Contribution> contributions;
    // Folded moments, by position; empty unless some are kept.
    std::vector<std::optional<Moments>> kept;
    // By group.
    std::vector<Meeting> meetings;
  };
  // One member, besides its place in the entries.
  struct Member {
    int64_t bytes = 0;
    // The entry in which it waits, or waited last.
    const Entry* last = nullptr;
  };

  Entry& EntryOf(const ReduceKey& key);
  // The entry of the forward call of a backward one, or null.
  const Entry* FindForward(const CallPlace& place) const;
  // It is known who the members of the group's meeting are, or will be.
  static bool KnowsMembers(const Entry& entry, size_t group);
  // The member at `position` is one of them.
  bool IsIn(const Entry& entry, size_t position) const;
  void NoteRepeated(Entry& entry, size_t position, Instant now,
                    Outcome& outcome);
  void NoteLate(Entry& entry, size_t position, Instant now);
  void SetWaiting(Entry& entry, size_t position, bool waiting);
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
  void Observe(const Entry& entry, MemberGroups::Range range, Instant now);

  MemberGroups members_;
  MemberCalls calls_;
  Options options_;
  std::map<CallPlace, Entry> entries_;
  // By position in members_.
  std::vector<Member> states_;
  // By group: the lowest rank's.
  std::vector<std::optional<Late>> late_;
  RendezvousWaits forward_;
  RendezvousWaits backward_;
};

}  // namespace cohort
