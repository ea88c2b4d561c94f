// Asynchronous pushes of the coordinator.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "server/core/coordinator.h"

namespace cohort {

void Coordinator::EnqueueArrival(Worker& worker, Instant now, Effects& out) {
  const auto push = assembling_.find(worker.rank);
  const auto piece = pieces_.find(worker.rank);
  COHORT_CHECK(push != assembling_.end() && piece != pieces_.end(),
               absl::StrCat("rank ", worker.rank.value(), " has no piece"));
  const Assignment& given = *worker.outstanding;
  arrivals_.push_back(
      {.rank = worker.rank,
       .incarnation = worker.incarnation,
       .key = {.sequence = given.sequence, .attempt = given.attempt},
       .push = std::move(push->second),
       .piece = piece->second,
       .since = now});
  SettlePush(worker.rank, arrivals_.back().push);
  assembling_.erase(push);
  pieces_.erase(piece);
  worker.outstanding.reset();
  ApplyNext(now, out);
}

void Coordinator::ReissuePiece(Rank rank) {
  const auto piece = pieces_.find(rank);
  if (piece == pieces_.end()) return;
  ledger_.cursor().Reissue(piece->second);
  pieces_.erase(piece);
}

std::vector<RankLead> Coordinator::Leads() const {
  const bool waits = settings_.waits_for_lost();
  std::vector<RankLead> leads;
  for (const Worker& worker : ranks_.all()) {
    leads.push_back(
        {.rank = worker.rank,
         .assignments_finished = worker.assignments_finished,
         .counts = worker.usable() || (waits && worker.ever_registered)});
  }
  return leads;
}

std::vector<Rank> Coordinator::Behind(Rank rank) const {
  if (!settings_.bounded()) return {};
  std::vector<RankLead> leads = Leads();
  // A push that waits for its turn is over for the rank that sent it: one that
  // reconnects meanwhile asks for the next.
  int64_t& finished =
      leads[static_cast<size_t>(rank.value())].assignments_finished;
  for (const Arrival& arrival : arrivals_) finished += arrival.rank == rank;
  if (applying_.has_value()) finished += applying_->rank == rank;
  return BehindBy(settings_.policy().lead_max, rank, leads);
}

void Coordinator::HoldReadVersions() {
  if (settings_.sync() ||
      settings_.policy().staleness.rule != StalenessRule::kCompensate) {
    model_.HoldNone();
    return;
  }
  // Nobody under way has read anything older than this.
  Version oldest = model_.version();
  for (const Worker& worker : ranks_.all()) {
    if (worker.outstanding.has_value() &&
        worker.outstanding->kind == AssignmentKind::kTrain) {
      oldest = std::min(oldest, worker.outstanding->version);
    }
  }
  for (const Arrival& arrival : arrivals_) {
    oldest = std::min(oldest, arrival.push.opening().version);
  }
  model_.HoldFrom(oldest);
}

SharedSnapshot Coordinator::ReadBy(Version version) const {
  // Of a gradient that is not stale only the mean square is of use.
  if (!judgement_.compensate &&
      (settings_.policy().staleness.rule != StalenessRule::kCompensate ||
       !settings_.policy().staleness.compensation_adaptive)) {
    return nullptr;
  }
  return model_.Held(version);
}

void Coordinator::ApplyNext(Instant now, Effects& out) {
  if (applying_.has_value() || arrivals_.empty()) return;
  RoundView view;
  for (const Arrival& arrival : arrivals_) {
    view.pushes.push_back({.rank = arrival.rank, .complete = true});
  }
  const Decision decision = settings_.aggregation().Decide(view);
  if (decision.action != Decision::Action::kApply) return;
  COHORT_CHECK(decision.members.front() == arrivals_.front().rank,
               "pushes are applied in order of arrival");
  applying_ = std::move(arrivals_.front());
  arrivals_.erase(arrivals_.begin());

  const PushOpening& opening = applying_->push.opening();
  judgement_ =
      Judge(settings_.policy().staleness,
            model_.version().value() - opening.version.value(), ranks_.size());
  if (judgement_.drop) {
    DropArrival(now, out);
    return;
  }
  const double share = static_cast<double>(opening.samples) /
                       static_cast<double>(samples_reference());
  // A damped gradient, not a damped rate: earlier gradients in the momentum
  // are not to blame for this one's age.
  applying_transaction_ = model_.NewTransaction(
      {.optimizer = settings_.options().optimizer,
       .learning_rate = share * learning_rate(),
       .loss_weight = opening.loss_weight,
       .read = ReadBy(opening.version),
       .compensation = settings_.policy().staleness.compensation,
       .adaptive = settings_.policy().staleness.compensation_adaptive,
       .weight = judgement_.weight});
  for (size_t p = 0; p < model_.model()->partitions.size(); ++p) {
    const auto partition = static_cast<int32_t>(p);
    if (applying_transaction_->Started(partition)) continue;
    FoldJob job = applying_transaction_->Fold(
        partition, {{applying_->rank, &applying_->push}});
    budget_.BeginFold(GradientBytes(job));
    out.push_back(effect::Fold{.job = std::move(job)});
  }
  if (applying_transaction_->complete()) CommitArrival(now, out);
}

void Coordinator::ApplyArrival(const Arrival& arrival,
                               const Transaction& transaction) {
  const std::vector<Rank> usable = ranks_.Usable();
  StatisticsSets statistics = *model_.current()->statistics;
  CountStatistics(judgement_.weight < 1 ? &StatisticsCounts::damped
                                        : &StatisticsCounts::folded,
                  1);
  model_.statistics().ApplyPush({.rank = arrival.rank,
                                 .samples = arrival.push.opening().samples,
                                 .weight = judgement_.weight,
                                 .calls = arrival.push.closing().moments},
                                usable.empty() ? arrival.rank : usable.front(),
                                samples_reference(), statistics);
  model_.Publish(transaction.Next(std::move(statistics)));
  ledger_.BeginAttempts();
  ledger_.CountFinite();
  ++ledger_.counts.pushes_applied;
}

PushVerdict Coordinator::VerdictOn(const Arrival& arrival) const {
  return {.staleness_versions =
              model_.version().value() - arrival.push.opening().version.value(),
          .weight = judgement_.weight};
}

void Coordinator::DropArrival(Instant now, Effects& out) {
  const Arrival arrival = *std::move(applying_);
  applying_.reset();
  PushVerdict verdict = VerdictOn(arrival);
  verdict.verdict = Verdict::kDropped;
  verdict.reason = judgement_.reason;
  ++ledger_.counts.pushes_dropped;
  EndArrival(arrival, nullptr, std::move(verdict), now, out);
}

void Coordinator::CommitArrival(Instant now, Effects& out) {
  Arrival arrival = *std::move(applying_);
  const Transaction transaction = *std::move(applying_transaction_);
  applying_.reset();
  applying_transaction_.reset();

  PushVerdict verdict = VerdictOn(arrival);
  std::optional<std::string> nonfinite =
      NonfiniteMoments(arrival.rank, arrival.push);
  if (transaction.nonfinite().has_value()) {
    nonfinite = NonfiniteText(*transaction.nonfinite());
  }
  if (nonfinite.has_value()) {
    verdict.verdict = Verdict::kRejectedNonfinite;
    verdict.reason = *nonfinite;
    ++ledger_.counts.pushes_rejected_nonfinite;
  } else {
    if (judgement_.weight < 1) {
      verdict.verdict = Verdict::kDamped;
      ++ledger_.counts.pushes_damped;
    }
    if (model_.version().value() % kDriftEvery == 0) {
      arrival.drift =
          PushDrift(model_.batch_norms(), arrival.push.closing().moments,
                    model_.current()->statistics->front().layers);
    }
    ApplyArrival(arrival, transaction);
  }
  EndArrival(arrival, &transaction, std::move(verdict), now, out);
}

void Coordinator::EndArrival(const Arrival& arrival,
                             const Transaction* transaction,
                             PushVerdict verdict, Instant now, Effects& out) {
  const PushOpening& opening = arrival.push.opening();
  const PushClosing& closing = arrival.push.closing();
  const bool applied = IsApplied(verdict.verdict);
  budget_.Release(arrival.push.held_bytes());
  verdict.version = model_.version();
  CommitRecord record{.version = model_.version(),
                      .data_epoch = arrival.piece.epoch,
                      .commit_samples = opening.samples,
                      .loss_weight = opening.loss_weight,
                      .labels = closing.labels,
                      // The schedule's, not this push's share of it.
                      .learning_rate = learning_rate(),
                      .staleness_versions = verdict.staleness_versions,
                      .members = {arrival.rank},
                      .skipped = !applied};
  if (transaction != nullptr) {
    record.gradient_norm = transaction->gradient_norm();
  }
  if (opening.loss_weight > 0) {
    record.loss = closing.loss_sum / opening.loss_weight;
  }
  if (closing.labels > 0) {
    record.accuracy = static_cast<double>(closing.correct) /
                      static_cast<double>(closing.labels);
  }
  ledger_.AddSamples(record.commit_samples);
  record.samples = ledger_.samples();
  record.epoch_ended = ledger_.cursor().Finish(arrival.piece).has_value();
  ++ranks_[arrival.rank].assignments_finished;
  if (!applied) CountStatistics(&StatisticsCounts::dropped, 1);
  ++ledger_
        .staleness[std::min(verdict.staleness_versions, kStalenessCountedMax)];
  CommitObservation observation{.barrier_waits = {now - arrival.since},
                                .aggregation = now - arrival.since,
                                .drift = arrival.drift};
  AfterCommit(record, std::move(observation), out);
  HoldReadVersions();
  ResumePaused(now, out);

  const std::string reason = verdict.reason;
  const bool stop = verdict.verdict == Verdict::kRejectedNonfinite &&
                    CountNonfinite(reason, out);
  AnswerArrival(arrival, applied ? transaction : nullptr, std::move(verdict),
                now, out);
  if (stop) {
    End(RunOutcome::kNonfinite,
        absl::StrCat(ledger_.nonfinite_in_row(),
                     " pushes in a row were not finite; ",
                     "the last: ", reason),
        out);
    return;
  }
  Advance(now, out);
}

void Coordinator::AnswerArrival(const Arrival& arrival,
                                const Transaction* applied, PushVerdict verdict,
                                Instant now, Effects& out) {
  Worker& worker = ranks_[arrival.rank];
  if (worker.incarnation != arrival.incarnation) {
    // Whoever repeats it under another incarnation is told the truth.
    ledger_.pushes_of(arrival.rank).Decide(arrival.key, verdict);
    return;
  }
  if (applied != nullptr && worker.usable()) {
    for (size_t p = 0; p < model_.model()->partitions.size(); ++p) {
      const std::optional<FoldResult>& result =
          applied->result(static_cast<int32_t>(p));
      if (!result.has_value()) continue;
      SendResult(*result, model_.version(), worker, arrival.key, out);
    }
  }
  Answer(worker, arrival.key, std::move(verdict),
         applied == nullptr ? 0 : model_.trainable_partitions(), now, out);
}

}  // namespace cohort
