#include "server/core/step/sync_commit.h"

#include <memory>
#include <utility>
#include <vector>

#include "server/core/ledger/run_progress.h"
#include "server/core/statistics/moving_statistics.h"
#include "server/core/step/push_outcome.h"
#include "server/core/step/step_updates.h"

namespace cohort {

void PrepareCommit(RunParts& parts, Round& round, Turn& turn) {
  if (!round.fixed() || !round.pushes.AllOpened() || round.progress.discards) {
    return;
  }
  const PushOpening& lowest = round.pushes.LowestOpening();
  parts.ledger.NoteSentRates(lowest.learning_rates);
  CommitPlan plan =
      parts.model.Complete({.contributors = round.pushes.Contributors(),
                            .learning_rate = LearningRateNow(
                                parts.settings, parts.ledger, parts.model),
                            .group_rates = lowest.learning_rates,
                            .numbers = lowest.numbers,
                            .loss_weight = round.pushes.GradientWeight(),
                            .update = round.update(),
                            .continues = lowest.continues});
  round.progress.commit.emplace(plan, parts.model.model(),
                                parts.settings.options().optimizer);
  turn.out.push_back(command::Prepare{.plan = std::move(plan)});
  for (int32_t p = 0; p < parts.model.partitions(); ++p) {
    BeginFoldIfComplete(parts, round, p, turn.now);
  }
}

void BeginFoldIfComplete(RunParts& parts, Round& round, int32_t partition,
                         Instant now) {
  std::optional<PendingCommit>& commit = round.progress.commit;
  if (!commit.has_value() || commit->HasBegun(partition) ||
      !round.pushes.HasArrived(partition)) {
    return;
  }
  std::optional<Instant>& first_fold = round.progress.first_fold;
  if (!first_fold.has_value()) first_fold = now;
  commit->Begin(partition);
  parts.flow.budget().BeginFold(round.pushes.BeginFold(partition));
}

namespace {

bool IsTrainable(const RunParts& parts, int32_t partition) {
  return parts.model.model()
      ->partitions[static_cast<size_t>(partition)]
      .trainable;
}

// To all members, what has become of one partition.
void SendResults(RunParts& parts, const Round& round, int32_t partition,
                 Turn& turn) {
  for (Rank rank : round.members()) {
    const Worker& worker = parts.ranks[rank];
    // Tentative weights are of no use to a rank that is not there, or
    // that has not reached this step again.
    if (!worker.usable() || !worker.work.busy()) continue;
    SendResult(*round.progress.commit, partition, worker, KeyOf(round, worker),
               turn);
  }
}

}  // namespace

void TakeStepFold(RunParts& parts, Round& round, FoldReport report,
                  Turn& turn) {
  std::optional<PendingCommit>& commit = round.progress.commit;
  const int32_t partition = report.partition;
  const bool prepared = report.prepared;
  if (!commit.has_value() || !TakeFold(std::move(report), *commit, turn)) {
    return;
  }
  if (prepared) {
    SendResults(parts, round, partition, turn);
  } else if (commit->given_up()) {
    for (int32_t p = 0; p < parts.model.partitions(); ++p) {
      if (IsTrainable(parts, p)) SendResults(parts, round, p, turn);
    }
  }
  NoteFold(round);
}

bool UpdateStatistics(RunParts& parts, Round& round, Turn& turn) {
  Round::Progress& progress = round.progress;
  if (progress.statistics.has_value()) return true;
  if (progress.updating_statistics) return false;
  for (const auto& [rank, text] : progress.nonfinite_closings) {
    if (round.IsMember(rank)) progress.NoteNonfinite(text);
  }
  if (progress.nonfinite.has_value() ||
      progress.commit->nonfinite().has_value()) {
    return true;
  }
  const bool global = parts.settings.global();
  StatisticsUpdate job{
      .step = round.step(),
      .attempt = round.attempt(),
      .kept = parts.model.statistics(),
      .layers = {parts.model.model(), &parts.model.batch_norms()},
      .samples_reference = SamplesReference(parts),
      .sets = *parts.model.current()->statistics};
  if (global) {
    job.combined = round.rendezvous.ForwardResults();
    job.forward = round.rendezvous.TakeForward();
  }
  job.moments = std::make_shared<const std::vector<RankMoments>>(
      TakeMoments(round, global, parts.model.batch_norms().size()));
  if (ChannelsOf(job) <= parts.settings.options().moments_inline_max) {
    progress.statistics = RunStatisticsUpdate(std::move(job));
    return true;
  }
  progress.updating_statistics = true;
  turn.out.push_back(effect::UpdateStatistics{.job = std::move(job)});
  return false;
}

PublishedStep PublishStep(RunParts& parts, Round& round, Turn& turn) {
  ModelStore& model = parts.model;
  const PendingCommit& commit = *round.progress.commit;
  const std::optional<StatisticsUpdate>& updated = round.progress.statistics;
  if (updated.has_value() && updated->overflow.has_value()) {
    round.progress.NoteNonfinite(OverflowText(model, *updated->overflow));
  }
  // If both are bad, the gradient is named.
  std::optional<std::string> nonfinite = round.progress.nonfinite;
  if (commit.nonfinite().has_value()) {
    nonfinite = NonfiniteText(model, *commit.nonfinite());
    round.progress.NoteNonfinite(*nonfinite);
  }
  StatisticsSets statistics;
  if (nonfinite.has_value()) {
    statistics = *model.current()->statistics;
  } else {
    StatisticsUpdate& update = *round.progress.statistics;
    if (MeasuresDrift(model.version()) && update.moments->size() > 1) {
      turn.out.push_back(effect::MeasureDrift{
          .model = model.model(), .moments = std::move(update.moments)});
    }
    statistics = std::move(update.sets);
  }
  model.Publish(
      Successor(*model.current(),
                {.statistics = std::move(statistics),
                 .front_end_state = round.pushes.TakeLowestFrontEndState()}));
  EndTransaction(commit,
                 nonfinite.has_value() ? TransactionEnd::kSkipped
                                       : TransactionEnd::kCommitted,
                 model, turn);
  WarnOfSameBatches(parts, parts.ledger.same_batches.NoteStep(DigestsOf(round)),
                    turn);
  CommitRecord record = RecordOf(round);
  record.version = model.version();
  return {.record = std::move(record),
          .observation = TakeObservation(round, turn.now),
          .nonfinite = std::move(nonfinite)};
}

}  // namespace cohort
