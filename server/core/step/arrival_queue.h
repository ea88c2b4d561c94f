#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/core/policy/lead.h"
#include "server/core/policy/staleness_rule.h"
#include "server/core/statistics/observation.h"
#include "server/core/statistics/statistics_sets.h"
#include "server/core/step/arrived_push.h"
#include "server/core/step/pending_commit.h"
#include "server/core/step/step_driver.h"

namespace cohort {

// Asynchronous pushes, applied one by one in the order in which they are
// complete; `bounded` keeps fast ranks from running ahead of slow ones.
class ArrivalQueue final : public StepDriver {
 public:
  explicit ArrivalQueue(RunParts& parts) : StepDriver(parts) {}

  absl::Status Open(Worker& worker, const PushOpening& opening,
                    Turn& turn) override;
  absl::StatusOr<Admission> Gradient(Worker& worker,
                                     const GradientArrival& gradient,
                                     Turn& turn) override;
  absl::Status Close(Worker& worker, PushClosing closing, Turn& turn) override;
  absl::Status Reduce(Worker& worker, MomentsMessage message,
                      Turn& turn) override;
  void Folded(FoldReport report, Turn& turn) override;
  const PendingCommit* commit() const override {
    return commit_.has_value() ? &*commit_ : nullptr;
  }
  bool HasOpened(const Worker& worker) const override {
    const auto push = assembling_.find(worker.rank);
    return push != assembling_.end() && push->second.opened();
  }
  bool IsQueued(Rank rank, const PushKey& key) const override;

  bool Advance(Turn& turn) override;
  std::optional<Assignment> Next(Worker& worker) override;

  void Welcome(Worker& worker, bool anew, Turn& turn) override;
  void RankLost(Rank rank, bool waits, const std::string& why,
                Turn& turn) override;

  void Tick(Turn& turn) override { ResumePaused(turn); }

  bool Quiet() const override;
  void GiveUp(Turn& turn) override;

  std::vector<DataCursor::Piece> Undecided() const override;
  Standing StandingOf(const Worker& worker) const override {
    return {.blocks_others = worker.outstanding.has_value(),
            .is_blocked = worker.waiting};
  }
  std::vector<Rank> WaitedFor() const override {
    return parts_.ranks.InFlight();
  }
  std::vector<Rank> BlockedBy(const Worker& worker) const override {
    return Behind(worker.rank);
  }

 private:
  bool Idle() const override {
    return pieces_.empty() && arrivals_.empty() && !applying_.has_value();
  }
  // A complete push on its way into the model.
  struct Arrival {
    Rank rank;
    Incarnation incarnation;
    PushKey key;
    ArrivedPush push;
    DataCursor::Piece piece;
    // When it was complete.
    Instant since;
    std::vector<LayerDrift> drift;
  };

  // The push of `worker`, as far as it has come.
  ArrivedPush& PushOf(const Worker& worker);
  // Forgets it.
  void DropAssembly(Rank rank, Turn& turn);
  void Enqueue(Worker& worker, Turn& turn);
  // Streams go on whose push has room now.
  void ResumePaused(Turn& turn);
  void Reissue(Rank rank);

  // The samples of its next push, unless others were left over.
  int64_t ShareOf(const Worker& worker) const;
  std::vector<RankLead> Leads() const;
  // Ranks that `rank` must wait for before it starts another assignment.
  std::vector<Rank> Behind(Rank rank) const;

  // Keeps the versions that pushes under way have read, as far as the policy
  // needs them.
  void HoldReadVersions();
  // The version that a push's gradient was computed at, where it is needed to
  // compensate it.
  std::optional<Version> ReadBy(Version version) const;

  // Takes the next push out of the queue, and begins to fold it.
  void ApplyNext(Turn& turn);
  void Commit(Turn& turn);
  // Pushes that were given out and are not decided.
  int64_t UnderWay() const;
  // Statistics of the version that the push would make.
  StatisticsSets StatisticsWith(const Arrival& arrival) const;
  void Apply(Arrival& arrival, StatisticsSets statistics);
  // The verdict on the push being applied, as far as it is known yet.
  PushVerdict VerdictOn(const Arrival& arrival) const;
  void Drop(Turn& turn);
  // The push is decided; `commit` is null if nothing was folded.
  void End(const Arrival& arrival, const PendingCommit* commit,
           PushVerdict verdict, Turn& turn);
  // Sends the weights of `applied` and the verdict, unless the sender's life
  // is over.
  void Answer(const Arrival& arrival, const PendingCommit* applied,
              const PushVerdict& verdict, Turn& turn);

  // Pushes in assembly, and what they are of.
  std::map<Rank, ArrivedPush> assembling_;
  std::map<Rank, DataCursor::Piece> pieces_;
  // Complete ones in order of arrival, and the one being applied.
  std::vector<Arrival> arrivals_;
  std::optional<Arrival> applying_;
  std::optional<PendingCommit> commit_;
  StalenessDecision decision_;
};

}  // namespace cohort
