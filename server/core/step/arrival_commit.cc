// How an asynchronous push becomes a commit.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "server/core/ledger/run_progress.h"
#include "server/core/step/arrival_queue.h"
#include "server/core/step/push_outcome.h"

namespace cohort {

void ArrivalQueue::HoldReadVersions() {
  if (parts_.settings.policy().staleness.rule != StalenessRule::kCompensate) {
    parts_.model.HoldNone();
    return;
  }
  // No push under way has read anything older than this.
  Version oldest = parts_.model.version();
  for (const Worker& worker : parts_.ranks.all()) {
    if (worker.trains()) {
      oldest = std::min(oldest, worker.outstanding->version);
    }
  }
  for (const Arrival& arrival : arrivals_) {
    oldest = std::min(oldest, arrival.push.opening().version);
  }
  parts_.model.HoldFrom(oldest);
}

std::optional<Version> ArrivalQueue::ReadBy(Version version) const {
  const StalenessOptions& staleness = parts_.settings.policy().staleness;
  // A gradient that is not stale needs it only for its mean square.
  if (!decision_.compensate && (staleness.rule != StalenessRule::kCompensate ||
                                !staleness.compensation_adaptive)) {
    return std::nullopt;
  }
  COHORT_CHECK(parts_.model.Holds(version),
               absl::StrCat("version ", version.value(), " is not held"));
  return version;
}

bool ArrivalQueue::Advance(Turn& turn) {
  if (applying_.has_value()) {
    if (!commit_->complete()) return false;
    Commit(turn);
    return true;
  }
  if (arrivals_.empty()) return false;
  ApplyNext(turn);
  return true;
}

void ArrivalQueue::ApplyNext(Turn& turn) {
  applying_ = std::move(arrivals_.front());
  arrivals_.erase(arrivals_.begin());

  const StalenessOptions& staleness = parts_.settings.policy().staleness;
  const PushOpening& opening = applying_->push.opening();
  decision_ = DecideStaleness(
      staleness, parts_.model.version().value() - opening.version.value(),
      parts_.settings.elastic() ? parts_.ranks.present() : parts_.ranks.size());
  if (decision_.drop) {
    Drop(turn);
    return;
  }
  const double share = static_cast<double>(opening.samples) /
                       static_cast<double>(SamplesReference(
                           parts_.settings.policy(), parts_.ranks));
  // A damped gradient, not a damped rate: earlier gradients in the momentum
  // are not to blame for this one's age.
  std::vector<double> group_rates = opening.learning_rates;
  if (!group_rates.empty()) {
    parts_.ledger.sent_learning_rate = group_rates.front();
  }
  for (double& rate : group_rates) rate *= share;
  CommitPlan plan = parts_.model.Complete(
      {.contributors = {{.rank = applying_->rank, .key = applying_->key}},
       .learning_rate = share * LearningRateNow(parts_.settings, parts_.ledger,
                                                parts_.model),
       .group_rates = std::move(group_rates),
       .loss_weight = opening.GradientWeight(),
       .read = ReadBy(opening.version),
       .compensation = staleness.compensation,
       .adaptive = staleness.compensation_adaptive,
       .weight = decision_.weight});
  commit_.emplace(plan, parts_.model.model(),
                  parts_.settings.options().optimizer);
  turn.out.push_back(command::Prepare{.plan = std::move(plan)});
  for (int32_t p = 0; p < parts_.model.partitions(); ++p) {
    if (commit_->HasBegun(p)) continue;
    commit_->Begin(p);
    parts_.flow.budget().BeginFold(applying_->push.BeginFold(p));
  }
}

void ArrivalQueue::Folded(FoldReport report, Turn& turn) {
  ResumePaused(turn);
  if (commit_.has_value()) TakeFold(std::move(report), *commit_, turn);
}

StatisticsSets ArrivalQueue::StatisticsWith(const Arrival& arrival) const {
  const std::vector<Rank> usable = parts_.ranks.Usable();
  StatisticsSets statistics = *parts_.model.current()->statistics;
  parts_.model.statistics()->ApplyPush(
      {.rank = arrival.rank,
       .samples = arrival.push.opening().samples,
       .weight = decision_.weight,
       .calls = arrival.push.closing().moments,
       .changes = arrival.push.closing().changes},
      usable.empty() ? arrival.rank : usable.front(),
      SamplesReference(parts_.settings.policy(), parts_.ranks),
      parts_.model.version(), statistics);
  return statistics;
}

void ArrivalQueue::Apply(Arrival& arrival, StatisticsSets statistics) {
  CountStatistics(parts_,
                  decision_.weight < 1 ? &StatisticsCounts::damped
                                       : &StatisticsCounts::folded,
                  1);
  parts_.model.Publish(
      Successor(*parts_.model.current(),
                {.statistics = std::move(statistics),
                 .front_end_state = arrival.push.TakeFrontEndState()}));
  parts_.ledger.next_attempt = Attempt(0);
  parts_.ledger.nonfinite_in_row = 0;
  ++parts_.ledger.counts.pushes_applied;
}

PushVerdict ArrivalQueue::VerdictOn(const Arrival& arrival) const {
  return {.staleness_versions = parts_.model.version().value() -
                                arrival.push.opening().version.value(),
          .weight = decision_.weight};
}

void ArrivalQueue::Drop(Turn& turn) {
  const Arrival arrival = *std::move(applying_);
  applying_.reset();
  PushVerdict verdict = VerdictOn(arrival);
  verdict.verdict = Verdict::kDropped;
  verdict.reason = decision_.reason;
  ++parts_.ledger.counts.pushes_dropped;
  End(arrival, nullptr, std::move(verdict), turn);
}

void ArrivalQueue::Commit(Turn& turn) {
  Arrival arrival = *std::move(applying_);
  const PendingCommit commit = *std::move(commit_);
  applying_.reset();
  commit_.reset();

  const ModelStore& model = parts_.model;
  PushVerdict verdict = VerdictOn(arrival);
  std::optional<std::string> nonfinite =
      NonfiniteMoments(model, arrival.rank, arrival.push);
  if (commit.nonfinite().has_value()) {
    nonfinite = NonfiniteText(model, *commit.nonfinite());
  }
  StatisticsSets statistics;
  if (!nonfinite.has_value()) {
    statistics = StatisticsWith(arrival);
    const std::optional<int32_t> overflow = FirstOverflow(statistics);
    if (overflow.has_value()) nonfinite = OverflowText(model, *overflow);
  }
  if (nonfinite.has_value()) {
    verdict.verdict = Verdict::kRejectedNonfinite;
    verdict.reason = *nonfinite;
    ++parts_.ledger.counts.pushes_rejected_nonfinite;
  } else {
    if (decision_.weight < 1) {
      verdict.verdict = Verdict::kDamped;
      ++parts_.ledger.counts.pushes_damped;
    }
    if (MeasuresDrift(model.version())) {
      arrival.drift =
          PushDrift(model.batch_norms(), arrival.push.closing().moments,
                    model.current()->statistics->front().layers);
    }
    Apply(arrival, std::move(statistics));
  }
  EndTransaction(commit,
                 nonfinite.has_value() ? TransactionEnd::kAborted
                                       : TransactionEnd::kCommitted,
                 parts_.model, turn);
  End(arrival, &commit, std::move(verdict), turn);
}

void ArrivalQueue::End(const Arrival& arrival, const PendingCommit* commit,
                       PushVerdict verdict, Turn& turn) {
  turn.changed = true;
  RunLedger& ledger = parts_.ledger;
  const PushOpening& opening = arrival.push.opening();
  const PushClosing& closing = arrival.push.closing();
  const bool applied = IsApplied(verdict.verdict);
  if (commit == nullptr) {
    DropGradients(arrival.rank, arrival.push, turn);
    parts_.flow.budget().Release(arrival.push.held_bytes());
  }
  verdict.version = parts_.model.version();
  CommitRecord record{.version = parts_.model.version(),
                      .data_epoch = arrival.piece.epoch,
                      .commit_samples = opening.samples,
                      .loss_weight = opening.loss_weight,
                      .labels = closing.labels,
                      // The schedule's, not this push's share of it.
                      .learning_rate = LearningRateNow(
                          parts_.settings, parts_.ledger, parts_.model),
                      .staleness_versions = verdict.staleness_versions,
                      .members = {arrival.rank},
                      .measures = closing.measures,
                      .skipped = !applied};
  if (commit != nullptr) record.gradient_norm = commit->gradient_norm();
  if (opening.loss_weight > 0) {
    record.loss = closing.loss_sum / opening.loss_weight;
  }
  if (closing.labels > 0) {
    record.accuracy = static_cast<double>(closing.correct) /
                      static_cast<double>(closing.labels);
  }
  if (opening.batch_digest != 0) {
    WarnOfSameBatches(
        parts_,
        ledger.same_batches.NotePush(
            {.rank = arrival.rank, .digest = opening.batch_digest}),
        turn);
  }
  ledger.samples += record.commit_samples;
  record.samples = ledger.samples;
  record.epoch_ended = ledger.cursor.Finish(arrival.piece).has_value();
  ++parts_.ranks[arrival.rank].assignments_finished;
  if (!applied) CountStatistics(parts_, &StatisticsCounts::dropped, 1);
  ++ledger
        .staleness[std::min(verdict.staleness_versions, kStalenessCountedMax)];
  NoteCommit(parts_, record,
             {.barrier_waits = {turn.now - arrival.since},
              .aggregation = turn.now - arrival.since,
              .drift = arrival.drift},
             TrainingDone(), turn);
  HoldReadVersions();
  ResumePaused(turn);
  if (verdict.verdict == Verdict::kRejectedNonfinite) {
    CountNonfinite(parts_, verdict.reason, "pushes", turn);
  }
  Answer(arrival, applied ? commit : nullptr, verdict, turn);
}

void ArrivalQueue::Answer(const Arrival& arrival, const PendingCommit* applied,
                          const PushVerdict& verdict, Turn& turn) {
  Worker& worker = parts_.ranks[arrival.rank];
  if (worker.incarnation != arrival.incarnation) {
    // Whoever repeats it under another incarnation is told the truth.
    parts_.ledger.pushes_of(arrival.rank).Decide(arrival.key, verdict);
    return;
  }
  int32_t partitions = 0;
  if (applied != nullptr) partitions = parts_.model.trainable_partitions();
  if (applied != nullptr && worker.usable()) {
    for (int32_t p = 0; p < parts_.model.partitions(); ++p) {
      SendResult(*applied, p, worker, arrival.key, turn);
    }
  }
  AnswerPush(parts_, worker, arrival.key, verdict, partitions, turn);
}

void ArrivalQueue::GiveUp(Turn& turn) {
  const auto answer = [&](const Arrival& arrival) {
    AnswerGivenUp(parts_, arrival.rank, arrival.key, turn);
  };
  if (commit_.has_value()) {
    EndTransaction(*commit_, TransactionEnd::kAborted, parts_.model, turn);
  }
  if (applying_.has_value()) answer(*applying_);
  for (const Arrival& arrival : arrivals_) {
    DropGradients(arrival.rank, arrival.push, turn);
    parts_.flow.budget().Release(arrival.push.held_bytes());
    answer(arrival);
  }
  for (const auto& [rank, push] : assembling_) {
    parts_.flow.Release(rank, push, turn);
  }
}

}  // namespace cohort
