#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/assignment.h"
#include "common/evaluation_sums.h"
#include "common/ids.h"
#include "common/moments.h"
#include "common/score.h"
#include "server/core/evaluation/evaluation.h"
#include "server/core/evaluation/moments_collection.h"
#include "server/core/events/effects.h"
#include "server/core/events/requests.h"
#include "server/core/events/turn.h"
#include "server/core/ledger/run_ledger.h"
#include "server/core/ledger/run_phase.h"
#include "server/core/ledger/run_settings.h"
#include "server/core/membership/rank_table.h"
#include "server/core/model/model_store.h"

namespace cohort {

// Work over pinned versions, beside training: evaluations, and
// the moments of precise statistics (kind `after`). It decides what of both a
// run does at the end of an epoch, on request, and before it ends.
class PinnedWork {
 public:
  // It reads the others, ends what it has given to ranks, and publishes
  // statistics of the model. All must outlive it.
  PinnedWork(const RunSettings& settings, const RunPhase& phase,
             const RunLedger& ledger, RankTable& ranks, ModelStore& model)
      : settings_(settings),
        phase_(phase),
        ledger_(ledger),
        ranks_(ranks),
        model_(model) {}

  // No evaluation is in progress.
  bool evaluated() const { return evaluations_.empty(); }
  // Its workers want the result of the one in progress before the next step.
  // Under other policies than sync no step is the same for all.
  bool HoldsTraining() const {
    return !evaluated() && settings_.sync() &&
           model_.model()->plan.awaits_scores;
  }
  bool collecting() const { return collection_.has_value(); }
  // "collecting batch-norm moments, 3 of 20 batches".
  std::string CollectingText() const;
  // The newest at the end of an epoch, in this process.
  const std::optional<EvaluationRecord>& last_evaluation() const {
    return last_evaluation_;
  }
  // The newest at the end of an epoch.
  const std::optional<Score>& score() const { return score_; }
  // Of a process before this one.
  void RestoreScore(const std::optional<Score>& score) { score_ = score; }
  // The present version, or one that is pinned.
  // Errors: OutOfRange, naming the newest.
  absl::StatusOr<SharedVersion> Read(Version version) const;

  // An epoch, the last of `epochs`, has ended with the present version.
  void EvaluateEpoch(int64_t epochs, bool training_done);
  // At the end of training: collects `after` and evaluates, if the policy keeps
  // it. Returns true once there is nothing left to start.
  bool Conclude(Turn& turn);
  // Starts a collection on request; if one is in progress, only answers.
  // Errors: FailedPrecondition (training has not started or is done, the policy
  //   does not keep the kind, no layer has statistics, no worker is there).
  absl::StatusOr<CollectionAnswer> Collect(bool training_done, Turn& turn);

  // The next part that no rank computes yet, for `rank`, which then computes
  // it; without sequence and policy epoch.
  std::optional<Assignment> Next(Rank rank, bool may_collect);
  // Takes what `rank` computes away from it, for the next that asks. No-op if
  // it computes nothing.
  void Return(Rank rank);

  // The results of what `rank` computes.
  // Errors: InvalidArgument: they do not fit.
  absl::Status FinishEvaluation(Rank rank, const EvaluationSums& sums,
                                Effects& out);
  absl::Status CheckCollected(const std::vector<CallMoments>& calls) const;
  void FinishBatch(Rank rank, std::vector<CallMoments> calls,
                   bool training_done, Turn& turn);

 private:
  void StartEvaluation(const SharedVersion& snapshot,
                       EvaluationBook::Plan plan);
  void EvaluateAllKinds(int64_t epochs);
  // `after` is collected before the run ends.
  bool EndsWithCollection() const;
  // Those of the ranks that have one.
  std::vector<int64_t> BatchSizes() const;
  void StartCollection(Turn& turn);
  void FinishCollection(bool training_done, Turn& turn);

  const RunSettings& settings_;
  const RunPhase& phase_;
  const RunLedger& ledger_;
  RankTable& ranks_;
  ModelStore& model_;

  EvaluationBook evaluations_;
  std::optional<MomentsCollection> collection_;
  // The part that each rank computes.
  std::map<Rank, EvaluationBook::Shard> shards_;
  std::map<Rank, MomentsCollection::Shard> batches_;
  // Its activations were not finite.
  std::optional<Version> uncollectable_;
  // Conclude has nothing left to do.
  bool concluded_ = false;
  std::optional<EvaluationRecord> last_evaluation_;
  std::optional<Score> score_;
};

}  // namespace cohort
