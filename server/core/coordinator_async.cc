// Asynchronous pushes of the coordinator.

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
       .piece = piece->second});
  assembling_.erase(push);
  pieces_.erase(piece);
  worker.outstanding.reset();
  ApplyNext(now, out);
}

void Coordinator::ReissuePiece(Rank rank) {
  const auto piece = pieces_.find(rank);
  if (piece == pieces_.end()) return;
  cursor_.Reissue(piece->second);
  pieces_.erase(piece);
}

void Coordinator::ApplyNext(Instant now, Effects& out) {
  if (applying_.has_value() || arrivals_.empty()) return;
  RoundView view;
  for (const Arrival& arrival : arrivals_) {
    view.pushes.push_back({.rank = arrival.rank, .complete = true});
  }
  const Decision decision = aggregation_->Decide(view);
  if (decision.action != Decision::Action::kApply) return;
  COHORT_CHECK(decision.members.front() == arrivals_.front().rank,
               "pushes are applied in order of arrival");
  applying_ = std::move(arrivals_.front());
  arrivals_.erase(arrivals_.begin());

  const PushOpening& opening = applying_->push.opening();
  const double share = static_cast<double>(opening.samples) /
                       static_cast<double>(samples_reference());
  applying_transaction_ =
      NewTransaction(opening.loss_weight, share * learning_rate());
  for (size_t p = 0; p < model_->partitions.size(); ++p) {
    const auto partition = static_cast<int32_t>(p);
    if (applying_transaction_->Started(partition)) continue;
    out.push_back(
        effect::Fold{.job = applying_transaction_->Fold(
                         partition, {{applying_->rank, &applying_->push}})});
  }
  if (applying_transaction_->complete()) CommitArrival(now, out);
}

std::optional<std::string> Coordinator::NonfiniteOf(
    const Arrival& arrival, const Transaction& transaction) const {
  if (transaction.nonfinite().has_value()) {
    return NonfiniteText(*transaction.nonfinite());
  }
  for (const CallMoments& call : arrival.push.closing().moments) {
    if (IsFinite(call.moments)) continue;
    return absl::StrCat(
        "rank ", arrival.rank.value(), ": moments of ",
        model_->layout.batch_norms[static_cast<size_t>(call.layer)].name);
  }
  return std::nullopt;
}

void Coordinator::ApplyArrival(const Arrival& arrival,
                               const Transaction& transaction) {
  const std::vector<Rank> usable = ranks_.Usable();
  std::vector<LayerStatistics> statistics = *current_->statistics;
  statistics_.ApplyPush({.rank = arrival.rank,
                         .samples = arrival.push.opening().samples,
                         .calls = arrival.push.closing().moments},
                        usable.empty() ? arrival.rank : usable.front(),
                        samples_reference(), statistics);
  current_ = transaction.Next(std::move(statistics));
  nonfinite_in_row_ = 0;
  ++counters_["pushes_applied"];
}

void Coordinator::CommitArrival(Instant now, Effects& out) {
  Arrival arrival = *std::move(applying_);
  Transaction transaction = *std::move(applying_transaction_);
  applying_.reset();
  applying_transaction_.reset();

  const PushOpening& opening = arrival.push.opening();
  const PushClosing& closing = arrival.push.closing();
  PushVerdict verdict{.staleness_versions =
                          current_->version.value() - opening.version.value()};
  const std::optional<std::string> nonfinite =
      NonfiniteOf(arrival, transaction);
  if (nonfinite.has_value()) {
    verdict.verdict = Verdict::kRejectedNonfinite;
    verdict.reason = *nonfinite;
    ++counters_["pushes_rejected_nonfinite"];
  } else {
    ApplyArrival(arrival, transaction);
  }
  verdict.version = current_->version;

  CommitRecord record{.version = current_->version,
                      .data_epoch = arrival.piece.epoch,
                      .commit_samples = opening.samples,
                      .learning_rate = transaction.learning_rate(),
                      .staleness_versions = verdict.staleness_versions,
                      .members = {arrival.rank},
                      .skipped = nonfinite.has_value()};
  if (opening.loss_weight > 0) {
    record.loss = closing.loss_sum / opening.loss_weight;
  }
  if (closing.labels > 0) {
    record.accuracy = static_cast<double>(closing.correct) /
                      static_cast<double>(closing.labels);
  }
  samples_ += record.commit_samples;
  record.samples = samples_;
  record.epoch_ended = cursor_.Finish(arrival.piece).has_value();
  AfterCommit(record, out);
  const bool stop = nonfinite.has_value() && CountNonfinite(*nonfinite, out);
  AnswerArrival(arrival, transaction, std::move(verdict), now, out);
  if (stop) {
    End(RunOutcome::kNonfinite,
        absl::StrCat(nonfinite_in_row_, " pushes in a row were not finite; ",
                     "the last: ", *nonfinite),
        out);
    return;
  }
  Advance(now, out);
}

void Coordinator::AnswerArrival(const Arrival& arrival,
                                const Transaction& transaction,
                                PushVerdict verdict, Instant now,
                                Effects& out) {
  Worker& worker = ranks_[arrival.rank];
  if (worker.incarnation != arrival.incarnation) return;
  const bool applied = verdict.verdict == Verdict::kApplied;
  if (applied && worker.usable()) {
    for (size_t p = 0; p < model_->partitions.size(); ++p) {
      const std::optional<FoldResult>& result =
          transaction.result(static_cast<int32_t>(p));
      if (!result.has_value()) continue;
      SendResult(*result, current_->version, worker, arrival.key, out);
    }
  }
  Answer(worker, arrival.key, std::move(verdict),
         applied ? trainable_partitions_ : 0, now, out);
}

}  // namespace cohort
