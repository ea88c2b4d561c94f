#pragma once

#include <optional>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "common/push.h"
#include "server/core/events/turn.h"
#include "server/core/ledger/data_cursor.h"
#include "server/core/optimizer/fold_report.h"
#include "server/core/policy/staleness_rule.h"
#include "server/core/statistics/observation.h"
#include "server/core/statistics/statistics_sets.h"
#include "server/core/step/arrived_push.h"
#include "server/core/step/pending_commit.h"
#include "server/core/step/run_parts.h"

namespace cohort {

// A complete push on its way into the model.
struct QueuedPush {
  Rank rank;
  Incarnation incarnation;
  ArrivedPush arrived;
  DataCursor::Piece piece;
  // When it was complete.
  Instant since;
};

// A push that is applied by itself: from the decision on its staleness to its
// verdict. It is dropped at once if it is too stale, and otherwise folded.
class PushCommit {
 public:
  // Decides, and begins to fold it. `parts` must outlive it.
  PushCommit(RunParts& parts, QueuedPush push, Turn& turn);

  const QueuedPush& push() const { return push_; }
  // Null if it is dropped.
  const PendingCommit* commit() const {
    return commit_.has_value() ? &*commit_ : nullptr;
  }
  // Nothing is to be folded any more.
  bool complete() const { return !commit_.has_value() || commit_->complete(); }
  void Folded(FoldReport report, Turn& turn);

  // Once it is complete: makes the next version with it, unless it is dropped
  // or not finite.
  void Finish(Turn& turn);
  // After that: counts its samples. Returns what is known of the commit.
  CommitRecord Count(Turn& turn);
  CommitObservation TakeObservation(Instant now);
  // After that: sends its weights and its verdict, unless its sender is gone.
  void Answer(Turn& turn);
  // The run is over.
  void GiveUp(Turn& turn);

 private:
  // The version that the gradient was computed at, where it is needed to
  // compensate it.
  std::optional<Version> VersionRead() const;
  void Begin(Turn& turn);
  // Statistics of the version that the push would make.
  StatisticsSets StatisticsWith() const;
  void Apply(StatisticsSets statistics);

  RunParts& parts_;
  QueuedPush push_;
  StalenessDecision decision_;
  std::optional<PendingCommit> commit_;
  // From Finish on.
  PushVerdict verdict_;
  std::vector<LayerDrift> drift_;
};

}  // namespace cohort
