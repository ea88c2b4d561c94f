#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/assignment.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/rank_list.h"
#include "server/core/events/effects.h"
#include "server/core/events/turn.h"
#include "server/core/ledger/data_cursor.h"
#include "server/core/policy/same_batches.h"
#include "server/core/policy/sync_decision.h"
#include "server/core/statistics/observation.h"
#include "server/core/statistics/rendezvous.h"
#include "server/core/step/pending_commit.h"
#include "server/core/step/round_pushes.h"

namespace cohort {

// One (step, attempt), until it is committed or given up: who takes part, and
// what has come. It changes nothing by itself.
//
// Members are those whose pushes make up the step. Where only the first pushes
// do, all ranks are candidates until the members are fixed; what is said of
// members below holds for candidates until then.
class Round {
 public:
  struct Plan {
    Version step;
    Attempt attempt;
    // One range a candidate.
    StepCut cut;
    // Ascending. Those without samples take no part.
    std::vector<Rank> candidates;
    int32_t partitions = 0;
    // Partitions that have a gradient.
    int32_t trainable = 0;
    // The step is made of so many pushes; 0: of all.
    int32_t pushes_min = 0;
    // For the rendezvous; `fixed` is set by the round.
    RendezvousTable::Options rendezvous;
  };
  // A rank's closing, or what it did after it, is not what the rank has
  // contributed.
  struct Fault {
    Rank rank;
    std::string text;
    // Both were made by one incarnation, so the process contradicts itself.
    // Otherwise an earlier incarnation of the rank made other calls.
    bool contradicts_itself = false;
  };
  // On the way to the commit.
  struct Progress {
    // All are closed, and their batch-norm calls make one step.
    bool calls_agree = false;
    // The first that was seen.
    std::optional<Fault> fault;
    // The process of this member is being fenced; then the attempt ends.
    std::optional<Turn::Fencing> fencing;
    // Why the attempt ends, or the run, because of the updates that members
    // make.
    std::optional<std::string> repeat_because;
    std::optional<std::string> end_because;
    // Set once all members have opened the first update; that of the update
    // before, until they have opened the next.
    std::optional<PendingCommit> commit;
    // An earlier update was not finite: what comes of later ones is discarded.
    bool discards = false;
    std::optional<Instant> first_fold;
    // "rank 3: conv1.weight", of moments or gradients; the first that was seen.
    std::optional<std::string> nonfinite;
    // By rank: what is not finite in the moments of its closing.
    std::map<Rank, std::string> nonfinite_closings;
    // The step's statistics are being computed on the pool.
    bool updating_statistics = false;
    std::optional<StatisticsUpdate> statistics;

    void NoteFault(Fault seen) {
      if (!fault.has_value()) fault = std::move(seen);
    }
    void NoteNonfinite(std::string what) {
      if (!nonfinite.has_value()) nonfinite = std::move(what);
    }
  };

  explicit Round(Plan plan);

  Version step() const { return plan_.step; }
  Attempt attempt() const { return plan_.attempt; }
  const StepCut& cut() const { return plan_.cut; }

  // ---- who takes part
  const RankList& members() const { return members_; }
  bool IsMember(Rank rank) const { return pushes.Contains(rank); }
  bool fixed() const { return fixed_; }
  // What the pushes so far lead to.
  Decision Decide() const;
  // It is no member, because the step was full without it.
  bool WasDropped(Rank rank) const { return dropped_.contains(rank); }
  // The sender of a complete push is lost.
  void NoteLeft(Rank rank) { left_.insert(rank); }
  bool HasLeft(Rank rank) const { return left_.contains(rank); }
  // Ranks that have done what makes a member, in that order.
  const std::vector<Rank>& claims() const { return claims_; }
  // `rank` has done what makes a member. False if that changes nothing.
  bool Claim(Rank rank);
  // From now on these are the members. Returns the others, which must be
  // dropped.
  std::vector<Rank> DropOthers(const std::vector<Rank>& members);
  // The step is full without it.
  void Drop(Rank rank);
  // A candidate is lost.
  void Remove(Rank rank);
  // Forgets what has come of its push.
  void Restart(Rank rank);

  // ---- who was given it
  // False if `rank` was given it before.
  bool Issue(Rank rank);
  bool WasIssued(Rank rank) const { return shares_.at(rank).issued; }
  bool AnyIssued() const { return any_issued_; }
  IndexRange range(Rank rank) const { return shares_.at(rank).range; }
  // Empty unless the step has local ones.
  std::vector<IndexRange> local_steps(Rank rank) const;

  // ---- updates
  // The number of the one in progress.
  int32_t update() const { return update_; }
  // Another one follows it, as far as is known.
  bool Continues() const {
    const PushOpening* const opening = pushes.AnyOpening();
    return opening != nullptr && opening->continues;
  }
  // Its weights are there, for another one that follows.
  bool UpdateDone() const;
  // The next one begins; this one must be done.
  void NextUpdate();

  // Pushes, rendezvous and progress are those of the members, pushes those of
  // the update in progress.
  RoundPushes pushes;
  RendezvousTable rendezvous;
  Progress progress;

 private:
  Plan plan_;
  int32_t update_ = 0;
  RankList members_;
  bool fixed_ = true;
  std::vector<Rank> claims_;
  std::set<Rank> dropped_;
  std::set<Rank> left_;
  struct Share {
    IndexRange range;
    // Its position among the candidates.
    size_t candidate = 0;
    bool issued = false;
  };
  // Of the ranks that take part from the beginning.
  std::map<Rank, Share> shares_;
  bool any_issued_ = false;
};

// ---- the commit
// The digests of the pushes that have one, by rank.
std::vector<BatchDigest> DigestsOf(const Round& round);
// The members with the moments that they reported on closing, which the round
// hands over. `global`: without moments, as those of the rendezvous stand by
// call. Calls of one layer have the same number on all ranks that make them,
// also where a rank left out those of a whole part. `layers`: of the model.
std::vector<RankMoments> TakeMoments(Round& round, bool global, size_t layers);
// Sums over the members, but for the numbers of the run as a whole.
CommitRecord RecordOf(const Round& round);
// The observations of the round, which it hands over, without the drift.
CommitObservation TakeObservation(Round& round, Instant now);

}  // namespace cohort
