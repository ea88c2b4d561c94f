#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/core/statistics/rendezvous.h"
#include "server/core/step/round.h"
#include "server/core/step/step_calls.h"
#include "server/core/step/step_driver.h"
#include "server/core/step/step_updates.h"
#include "server/core/step/sync_commit.h"

namespace cohort {

// Synchronous steps: each is made of one push of every member, or of the first
// K, over consecutive samples in rank order. A step that cannot be completed is
// given up and repeated as another attempt.
class SyncRounds final : public StepDriver {
 public:
  explicit SyncRounds(RunParts& parts) : StepDriver(parts), calls_(parts) {}

  absl::Status Close(Worker& worker, const PushKey& key, PushClosing closing,
                     Turn& turn) override;
  absl::Status Reduce(Worker& worker, MomentsMessage message,
                      Turn& turn) override;
  void Folded(FoldReport report, Turn& turn) override;
  const PendingCommit* commit() const override;
  void MomentsFolded(MomentsFold&& done, Turn& turn) override;
  void StatisticsUpdated(StatisticsUpdate&& done, Turn& turn) override;

  bool Advance(Turn& turn) override;
  std::optional<Assignment> Next(Worker& worker) override;
  bool GivesAgain(const Worker& worker) const override;
  bool BlocksIssuedStep(Rank rank) const override;

  void RankLost(Rank rank, bool waits, const std::string& why,
                Turn& turn) override;

  void Tick(Turn& turn) override;

  bool Quiet() const override {
    return !round_.has_value() || !round_->AnyIssued();
  }
  void GiveUp(Turn& turn) override;

  std::optional<Attempt> attempt() const override {
    if (!round_.has_value()) return std::nullopt;
    return round_->attempt();
  }
  Standing StandingOf(const Worker& worker) const override;
  std::vector<Rank> WaitedFor() const override;
  std::vector<Rank> BlockedBy(const Worker&) const override {
    return WaitedFor();
  }

 private:
  const ArrivedPush* PushOf(Rank rank) const override {
    return IsMember(rank) ? &round_->pushes[rank] : nullptr;
  }
  absl::StatusOr<bool> TakesUpdate(Rank rank, const PushKey& key,
                                   const PushOpening& opening) override {
    return EnterUpdate(parts_, *round_, rank, key, opening);
  }
  int32_t update() const override {
    return round_.has_value() ? round_->update() : 0;
  }
  void NoteBehind(Rank rank) override { cohort::NoteBehind(*round_, rank); }
  bool Discards() const override { return round_->progress.discards; }
  ArrivedPush::Arrival EnterOpening(Worker& worker, const PushKey& key,
                                    const PushOpening& opening) override;
  ArrivedPush::Arrival EnterGradient(Rank rank,
                                     const GradientArrival& gradient) override {
    return round_->pushes.Take(rank, gradient);
  }
  void Opened(Turn& turn) override { PrepareCommit(parts_, *round_, turn); }
  void TookGradient(Worker& worker, int32_t partition, bool fresh,
                    Turn& turn) override;
  bool ReservesPushes() const override { return !round_->fixed(); }
  bool MayTake(Rank rank, int64_t bytes) const override;
  bool Idle() const override { return !round_.has_value(); }

  bool IsMember(Rank rank) const {
    return round_.has_value() && round_->IsMember(rank);
  }
  // No-op while no step may begin, or too few ranks could take part.
  void StartRound();
  // The members whose own moments the commit needs.
  RendezvousTable::Keep KeptMoments() const;
  // The attempt in progress is this one.
  bool IsPresent(Version step, Attempt attempt) const {
    return round_.has_value() && round_->step() == step &&
           round_->attempt() == attempt;
  }
  // Carry out what the members' updates and their batch-norm calls lead to.
  // False: the attempt is over, or the run.
  bool SettleUpdates(Turn& turn);
  bool SettleCalls(Turn& turn);
  void AbortAttempt(const std::string& reason, Turn& turn);
  void Commit(Turn& turn);
  // By member: the push it has made.
  std::vector<std::pair<Rank, PushKey>> EndAssignments();

  // ---- members of the first K
  // `rank` has done what makes a member.
  void Claim(Rank rank, Turn& turn);
  // Its push is closed, or a gradient has come. Under global normalisation a
  // closing makes a member, as the first moments do; otherwise a complete push
  // does.
  void ClaimByPush(Rank rank, Turn& turn);
  void DropOthersIfFull(Turn& turn);
  // The step is full without `rank`, which takes a new assignment.
  void DropFromStep(Rank rank, Turn& turn);
  // A member is lost whose push is not complete.
  void ReleaseIncomplete(Rank rank, bool waits, const std::string& why,
                         Turn& turn);
  // Lost before it could become a member.
  void RemoveCandidate(Rank rank, Turn& turn);

  // The step of `key` is over for `rank`.
  bool IsOver(const ReduceKey& key, Rank rank) const;

  // Every member is paused, waits in a rendezvous or has closed its push.
  bool IsStalled(Instant now) const;

  void AbortRendezvous(const std::vector<RendezvousTable::Pending>& waits,
                       const std::string& reason, Turn& turn);

  std::optional<Round> round_;
  StepCalls calls_;
};

}  // namespace cohort
