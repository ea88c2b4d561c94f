#include "server/core/step/push_commit.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "server/core/ledger/run_progress.h"
#include "server/core/step/push_outcome.h"

namespace cohort {

PushCommit::PushCommit(RunParts& parts, QueuedPush push, Turn& turn)
    : parts_(parts), push_(std::move(push)) {
  const ModelStore& model = parts_.model;
  decision_ = DecideStaleness(
      parts_.settings.policy().staleness,
      model.version().value() - push_.arrived.opening().version.value(),
      parts_.settings.elastic() ? parts_.ranks.present() : parts_.ranks.size());
  if (!decision_.drop) Begin(turn);
}

std::optional<Version> PushCommit::VersionRead() const {
  const StalenessOptions& staleness = parts_.settings.policy().staleness;
  // A gradient that is not stale needs it only for its mean square.
  if (!decision_.compensate && (staleness.rule != StalenessRule::kCompensate ||
                                !staleness.compensation_adaptive)) {
    return std::nullopt;
  }
  const Version version = push_.arrived.opening().version;
  COHORT_CHECK(parts_.model.Holds(version),
               absl::StrCat("version ", version.value(), " is not held"));
  return version;
}

void PushCommit::Begin(Turn& turn) {
  const StalenessOptions& staleness = parts_.settings.policy().staleness;
  const PushOpening& opening = push_.arrived.opening();
  const double share = static_cast<double>(opening.samples) /
                       static_cast<double>(SamplesReference(parts_));
  // A damped gradient, not a damped rate: earlier gradients in the momentum
  // are not to blame for this one's age.
  std::vector<double> group_rates = opening.learning_rates;
  parts_.ledger.NoteSentRates(group_rates);
  for (double& rate : group_rates) rate *= share;
  CommitPlan plan = parts_.model.Complete(
      {.contributors = {{.rank = push_.rank, .key = push_.arrived.key()}},
       .learning_rate = share * LearningRateNow(parts_.settings, parts_.ledger,
                                                parts_.model),
       .group_rates = std::move(group_rates),
       .numbers = opening.numbers,
       .loss_weight = opening.GradientWeight(),
       .read = VersionRead(),
       .compensation = staleness.compensation,
       .adaptive = staleness.compensation_adaptive,
       .weight = decision_.weight});
  commit_.emplace(plan, parts_.model.model(),
                  parts_.settings.options().optimizer);
  turn.out.push_back(command::Prepare{.plan = std::move(plan)});
  for (int32_t p = 0; p < parts_.model.partitions(); ++p) {
    if (commit_->HasBegun(p)) continue;
    commit_->Begin(p);
    parts_.flow.budget().BeginFold(push_.arrived.BeginFold(p));
  }
}

void PushCommit::Folded(FoldReport report, Turn& turn) {
  TakeFold(std::move(report), *commit_, turn);
}

StatisticsSets PushCommit::StatisticsWith() const {
  const std::vector<Rank> usable = parts_.ranks.Usable();
  StatisticsSets statistics = *parts_.model.current()->statistics;
  parts_.model.statistics()->ApplyPush(
      {.rank = push_.rank,
       .samples = push_.arrived.opening().samples,
       .weight = decision_.weight,
       .calls = push_.arrived.closing().moments,
       .changes = push_.arrived.closing().changes},
      usable.empty() ? push_.rank : usable.front(), SamplesReference(parts_),
      parts_.model.version(), statistics);
  return statistics;
}

void PushCommit::Apply(StatisticsSets statistics) {
  RunLedger& ledger = parts_.ledger;
  ModelStore& model = parts_.model;
  if (decision_.weight < 1) {
    verdict_.verdict = Verdict::kDamped;
    ++ledger.counts.pushes_damped;
  }
  if (MeasuresDrift(model.version())) {
    drift_ = PushDrift(model.batch_norms(), push_.arrived.closing().moments,
                       model.current()->statistics->front().layers);
  }
  CountStatistics(parts_,
                  decision_.weight < 1 ? &StatisticsCounts::damped
                                       : &StatisticsCounts::folded,
                  1);
  model.Publish(
      Successor(*model.current(),
                {.statistics = std::move(statistics),
                 .front_end_state = push_.arrived.TakeFrontEndState()}));
  ledger.next_attempt = Attempt(0);
  ledger.nonfinite_in_row = 0;
  ++ledger.counts.pushes_applied;
}

void PushCommit::Finish(Turn& turn) {
  verdict_ = {.staleness_versions = parts_.model.version().value() -
                                    push_.arrived.opening().version.value(),
              .weight = decision_.weight};
  if (!commit_.has_value()) {
    verdict_.verdict = Verdict::kDropped;
    verdict_.reason = decision_.reason;
    ++parts_.ledger.counts.pushes_dropped;
    DropGradients(push_.rank, push_.arrived, turn);
    parts_.flow.budget().Release(push_.arrived.unfolded_bytes());
  } else {
    const ModelStore& model = parts_.model;
    std::optional<std::string> nonfinite =
        commit_->nonfinite().has_value()
            ? NonfiniteText(model, *commit_->nonfinite())
            : NonfiniteMoments(model, push_.rank, push_.arrived);
    StatisticsSets statistics;
    if (!nonfinite.has_value()) {
      statistics = StatisticsWith();
      const std::optional<int32_t> overflow = FirstOverflow(statistics);
      if (overflow.has_value()) nonfinite = OverflowText(model, *overflow);
    }
    if (nonfinite.has_value()) {
      verdict_.verdict = Verdict::kRejectedNonfinite;
      verdict_.reason = *std::move(nonfinite);
      ++parts_.ledger.counts.pushes_rejected_nonfinite;
    } else {
      Apply(std::move(statistics));
    }
    EndTransaction(*commit_,
                   IsApplied(verdict_.verdict) ? TransactionEnd::kCommitted
                                               : TransactionEnd::kAborted,
                   parts_.model, turn);
  }
  verdict_.version = parts_.model.version();
}

CommitRecord PushCommit::Count(Turn& turn) {
  RunLedger& ledger = parts_.ledger;
  const PushOpening& opening = push_.arrived.opening();
  const PushClosing& closing = push_.arrived.closing();
  CommitRecord record{.version = verdict_.version,
                      .data_epoch = push_.piece.epoch,
                      .commit_samples = opening.samples,
                      .loss_weight = opening.loss_weight,
                      .labels = closing.labels,
                      // The schedule's, not this push's share of it.
                      .learning_rate = LearningRateNow(
                          parts_.settings, parts_.ledger, parts_.model),
                      .staleness_versions = verdict_.staleness_versions,
                      .members = {push_.rank},
                      .measures = closing.measures,
                      .skipped = !IsApplied(verdict_.verdict)};
  if (commit_.has_value()) record.gradient_norm = commit_->gradient_norm();
  if (opening.loss_weight > 0) {
    record.loss = closing.loss_sum / opening.loss_weight;
  }
  if (closing.labels > 0) {
    record.accuracy = static_cast<double>(closing.correct) /
                      static_cast<double>(closing.labels);
  }
  if (opening.batch_digest != 0) {
    WarnOfSameBatches(parts_,
                      ledger.same_batches.NotePush(
                          {.rank = push_.rank, .digest = opening.batch_digest}),
                      turn);
  }
  ledger.samples += record.commit_samples;
  record.samples = ledger.samples;
  record.epoch_ended = ledger.cursor.Finish(push_.piece).has_value();
  if (record.skipped) CountStatistics(parts_, &StatisticsCounts::dropped, 1);
  ++ledger
        .staleness[std::min(verdict_.staleness_versions, kStalenessCountedMax)];
  return record;
}

CommitObservation PushCommit::TakeObservation(Instant now) {
  return {.barrier_waits = {now - push_.since},
          .aggregation = now - push_.since,
          .drift = std::move(drift_)};
}

void PushCommit::Answer(Turn& turn) {
  if (verdict_.verdict == Verdict::kRejectedNonfinite) {
    CountNonfinite(parts_, verdict_.reason, "pushes", turn);
  }
  Worker& worker = parts_.ranks[push_.rank];
  if (worker.incarnation != push_.incarnation) {
    // A process that repeats it as another incarnation gets the true verdict,
    // now if it has repeated it.
    const PushKey& key = push_.arrived.key();
    PushHistory& history = parts_.ledger.pushes_of(push_.rank);
    const PushHistory::Entry* entry = history.Find(key);
    if (entry != nullptr && entry->awaited) {
      turn.answers.push_back(DecidePush(parts_, push_.rank, key, verdict_));
    } else {
      history.Decide(key, verdict_);
    }
    return;
  }
  const bool applied = IsApplied(verdict_.verdict);
  if (applied && worker.usable()) {
    for (int32_t p = 0; p < parts_.model.partitions(); ++p) {
      SendResult(*commit_, p, worker, push_.arrived.key(), turn);
    }
  }
  AnswerPush(parts_, worker, push_.arrived.key(), verdict_,
             applied ? parts_.model.trainable_partitions() : 0, turn);
}

void PushCommit::GiveUp(Turn& turn) {
  EndTransaction(*commit_, TransactionEnd::kAborted, parts_.model, turn);
  AnswerGivenUp(parts_, push_.rank, push_.arrived.key(), turn);
}

}  // namespace cohort
