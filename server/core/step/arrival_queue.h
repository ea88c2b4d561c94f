#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/core/policy/lead.h"
#include "server/core/step/arrived_push.h"
#include "server/core/step/push_commit.h"
#include "server/core/step/step_driver.h"

namespace cohort {

// Asynchronous pushes, applied one by one in the order in which they are
// complete; `bounded` keeps fast ranks from running ahead of slow ones.
class ArrivalQueue final : public StepDriver {
 public:
  explicit ArrivalQueue(RunParts& parts)
      : StepDriver(parts), finished_(static_cast<size_t>(parts.ranks.size())) {}

  absl::Status Close(Worker& worker, const PushKey& key, PushClosing closing,
                     Turn& turn) override;
  absl::Status Reduce(Worker& worker, MomentsMessage message,
                      Turn& turn) override;
  void Folded(FoldReport report, Turn& turn) override;
  const PendingCommit* commit() const override {
    return applying_.has_value() ? applying_->commit() : nullptr;
  }
  bool IsQueued(Rank rank, const PushKey& key) const override;

  bool Advance(Turn& turn) override;
  std::optional<Assignment> Next(Worker& worker) override;

  void Welcome(Worker& worker, bool fresh, Turn& turn) override;
  void RankLost(Rank rank, bool waits, const std::string& why,
                Turn& turn) override;

  void Tick(Turn& turn) override { ResumePaused(turn); }

  bool Quiet() const override;
  void GiveUp(Turn& turn) override;

  std::vector<DataCursor::Piece> Undecided() const override;
  Standing StandingOf(const Worker& worker) const override {
    return {.blocks_others = worker.work.busy(),
            .is_blocked = worker.work.waiting()};
  }
  std::vector<Rank> WaitedFor() const override {
    return parts_.ranks.InFlight();
  }
  std::vector<Rank> BlockedBy(const Worker& worker) const override {
    return Behind(worker.rank);
  }

 private:
  // A push that is in progress, and what it is of.
  struct Assembly {
    ArrivedPush push;
    DataCursor::Piece piece;
  };

  const ArrivedPush* PushOf(Rank rank) const override {
    const auto at = assembling_.find(rank);
    return at == assembling_.end() ? nullptr : &at->second.push;
  }
  absl::StatusOr<bool> TakesUpdate(Rank rank, const PushKey& key,
                                   const PushOpening& opening) override;
  ArrivedPush::Arrival EnterOpening(Worker& worker, const PushKey& key,
                                    const PushOpening& opening) override;
  ArrivedPush::Arrival EnterGradient(Rank rank,
                                     const GradientArrival& gradient) override;
  void TookGradient(Worker& worker, int32_t partition, bool fresh,
                    Turn& turn) override;
  // Pushes do not complete each other here: each is let in whole, or what
  // has come of many could never be folded.
  bool ReservesPushes() const override { return true; }
  bool MayTake(Rank rank, int64_t) const override {
    return parts_.flow.budget().HasReserved(rank);
  }
  bool Idle() const override { return UnderWay() == 0; }

  // Forgets what has come of the push of `rank`.
  void Restart(Rank rank, Turn& turn);
  void Enqueue(Worker& worker, Turn& turn);

  // The samples of its next push, unless others were left over.
  int64_t ShareOf(const Worker& worker) const;
  int64_t& FinishedBy(Rank rank) {
    return finished_[static_cast<size_t>(rank.value())];
  }
  std::vector<RankLead> Leads() const;
  // Ranks that `rank` must wait for before it starts another assignment.
  std::vector<Rank> Behind(Rank rank) const;

  // Keeps the versions that pushes in progress have read, as far as the policy
  // needs them.
  void HoldReadVersions();
  // The push that is being applied is complete: makes a version of it.
  void Commit(Turn& turn);
  // Pushes that were given out and are not decided.
  int64_t UnderWay() const;

  std::map<Rank, Assembly> assembling_;
  // Complete ones in order of arrival, and the one being applied.
  std::vector<QueuedPush> queue_;
  std::optional<PushCommit> applying_;
  // By rank: assignments that ended under the present policy.
  std::vector<int64_t> finished_;
};

}  // namespace cohort
