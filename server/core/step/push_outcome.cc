#include "server/core/step/push_outcome.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/core/statistics/moments_checks.h"

namespace cohort {

void CountArrival(const Worker& worker, ArrivedPush::Arrival arrival,
                  RunLedger& ledger, Turn& turn) {
  if (arrival == ArrivedPush::Arrival::kNew) return;
  ++ledger.counts.pushes_duplicate;
  if (arrival == ArrivedPush::Arrival::kRepeated) return;
  ++ledger.counts.replay_mismatches;
  turn.Warn(absl::StrCat("rank ", worker.rank.value(),
                         " sent a message twice with different content; the "
                         "first one counts"),
            worker.process());
}

void SendResult(const PendingCommit& commit, int32_t partition,
                const Worker& worker, const PushKey& key, Turn& turn) {
  Version version = commit.base_version().Next();
  if (!commit.HasWeights(partition)) {
    const bool failed = commit.IsPrepared(partition) || commit.given_up();
    if (!failed || !commit.continues()) return;
    // The step will change nothing, and the worker finishes it with these.
    version = commit.base_version();
  }
  turn.out.push_back(command::SendWeights{
      .rank = worker.rank,
      .incarnation = worker.incarnation,
      .key = key,
      .partition = partition,
      .version = version,
      // The process that opened the push, and no replacement of it, has what
      // the change is added to.
      .takes_change =
          worker.kept_weights ==
          WorkerWeights{.incarnation = worker.incarnation, .next = version}});
}

void TakeGradient(const Worker& worker, const PushKey& key,
                  const GradientArrival& gradient, bool fresh, Turn& turn) {
  turn.out.push_back(command::Take{.rank = worker.rank,
                                   .incarnation = worker.incarnation,
                                   .push = {.rank = worker.rank, .key = key},
                                   .partition = gradient.partition,
                                   .ticket = gradient.ticket,
                                   .held = fresh});
}

bool TakeFold(FoldReport report, PendingCommit& commit, Turn& turn) {
  if (!commit.Take(std::move(report))) return false;
  std::optional<GradientScales> scales = commit.TakeScales();
  if (scales.has_value()) {
    turn.out.push_back(command::Scale{.transaction = commit.transaction(),
                                      .scales = *std::move(scales)});
  }
  return true;
}

void EndTransaction(const PendingCommit& commit, TransactionEnd end,
                    ModelStore& model, Turn& turn) {
  const Version next = commit.base_version().Next();
  if (end == TransactionEnd::kCommitted) {
    turn.out.push_back(command::Commit{.transaction = commit.transaction(),
                                       .version = next,
                                       .held = model.HeldVersions()});
    return;
  }
  command::Abort abort{.transaction = commit.transaction()};
  if (end == TransactionEnd::kSkipped) {
    abort.skipped = next;
    abort.held = model.HeldVersions();
  }
  turn.out.push_back(std::move(abort));
}

void DropGradients(Rank rank, const ArrivedPush& push, Turn& turn) {
  if (push.received() == 0) return;
  turn.out.push_back(command::Drop{.push = {.rank = rank, .key = push.key()}});
}

effect::SendVerdict DecidePush(RunParts& parts, Rank rank, const PushKey& key,
                               const PushVerdict& verdict) {
  PushHistory& history = parts.ledger.pushes_of(rank);
  history.Decide(key, verdict);
  if (PushHistory::Entry* entry = history.Find(key)) entry->answered = true;
  return {.rank = rank,
          .incarnation = parts.ranks[rank].incarnation,
          .key = key,
          .verdict = verdict};
}

void AnswerPush(RunParts& parts, Worker& worker, const PushKey& key,
                const PushVerdict& verdict, int32_t weights_partitions,
                Turn& turn) {
  ++worker.pushes;
  effect::SendVerdict& answer =
      turn.answers.emplace_back(DecidePush(parts, worker.rank, key, verdict));
  answer.weights_partitions = weights_partitions;
  const ModelVersion& newest = *parts.model.current();
  if (worker.takes_statistics && verdict.version == newest.version &&
      (IsApplied(verdict.verdict) || verdict.verdict == Verdict::kSkipped) &&
      newest.statistics->front().Describes(newest.version)) {
    answer.statistics = newest.statistics;
  }
}

void AnswerGivenUp(RunParts& parts, Rank rank, const PushKey& key, Turn& turn) {
  const PushHistory::Entry* entry = parts.ledger.pushes_of(rank).Find(key);
  if (entry == nullptr || entry->verdict.has_value()) return;
  turn.answers.push_back(DecidePush(
      parts, rank, key,
      {.verdict = Verdict::kDropped,
       .version = parts.model.version(),
       .reason = absl::StrCat("the run is over: ", parts.phase.end_reason())}));
}

absl::Status RefuseReduce(const RunParts& parts, const Worker& worker,
                          const ReduceKey& key, Turn& turn) {
  if (!parts.settings.MayHaveRendezvous()) {
    return absl::FailedPreconditionError(
        absl::StrCat("a rendezvous needs --aggregation=sync and global "
                     "normalisation; the policy is ",
                     PolicyText(parts.settings.policy())));
  }
  turn.out.push_back(effect::ReduceAborted{
      .rank = worker.rank,
      .incarnation = worker.incarnation,
      .key = key,
      .reason = absl::StrCat("step ", key.step.value(), " attempt ",
                             key.attempt.value(), " is over")});
  return absl::OkStatus();
}

Assignment FinishedAssignment(const RunParts& parts,
                              const std::string& reason) {
  return {.kind = AssignmentKind::kFinished,
          .version = parts.model.version(),
          .policy_epoch = parts.settings.policy_epoch(),
          .reason = reason,
          .unfinished = parts.phase.broke_off(),
          .failed = parts.phase.failed(),
          .score = parts.pinned.score()};
}

std::optional<std::string> NonfiniteMoments(const ModelStore& model, Rank rank,
                                            const ArrivedPush& push) {
  for (const CallMoments& call : push.closing().moments) {
    if (IsUsable(ReducePhase::kForward, call.moments)) continue;
    return absl::StrCat(
        "rank ", rank.value(), ": moments of ",
        model.batch_norms()[static_cast<size_t>(call.layer)].name);
  }
  return std::nullopt;
}

std::string OverflowText(const ModelStore& model, int32_t layer) {
  return absl::StrCat("combined moments of ",
                      model.batch_norms()[static_cast<size_t>(layer)].name);
}

std::string NonfiniteText(const ModelStore& model,
                          const NonfiniteGradient& where) {
  const Partition& partition =
      model.model()->partitions[static_cast<size_t>(where.partition)];
  const Slice& slice = partition.slices[static_cast<size_t>(where.slice)];
  const std::string& name =
      model.layout().parameters[static_cast<size_t>(slice.parameter)].name;
  if (where.rank.has_value()) {
    return absl::StrCat("rank ", where.rank->value(), ": gradient of ", name);
  }
  return absl::StrCat("sum of the gradients of ", name, " overflows");
}

void CountNonfinite(RunParts& parts, const std::string& what,
                    const std::string& units, Turn& turn) {
  RunLedger& ledger = parts.ledger;
  const int32_t nonfinite_max = parts.settings.options().nonfinite_max;
  ++ledger.nonfinite_in_row;
  turn.Warn(absl::StrCat(
      "not finite: ", what, " at step ", parts.model.version().value(), " (",
      ledger.nonfinite_in_row, " in a row, ", nonfinite_max, " end the run)"));
  if (ledger.nonfinite_in_row < nonfinite_max) return;
  turn.end = {
      .outcome = RunOutcome::kNonfinite,
      .reason = absl::StrCat(ledger.nonfinite_in_row, " ", units,
                             " in a row were not finite; the last: ", what)};
}

void WarnOfSameBatches(RunParts& parts, const std::vector<Rank>& ranks,
                       Turn& turn) {
  if (ranks.empty()) return;
  parts.ledger.data_problem = SameBatchesText(ranks);
  turn.Warn(parts.ledger.data_problem);
}

void CountStatistics(RunParts& parts, int64_t StatisticsCounts::*what,
                     int64_t pushes) {
  // Precise statistics are collected after training, not from pushes.
  const std::vector<StatisticsKind>& kinds = parts.settings.policy().statistics;
  const bool from_pushes =
      std::any_of(kinds.begin(), kinds.end(), &MovesInTraining);
  if (from_pushes && parts.model.TracksStatistics()) {
    parts.ledger.statistics_counts.*what += pushes;
  }
}

int64_t SamplesReference(const RunParts& parts) {
  const int64_t global_batch = parts.settings.policy().global_batch;
  if (global_batch > 0) return global_batch;
  int64_t samples = 0;
  for (const Worker& worker : parts.ranks.all()) samples += worker.batch_size;
  return std::max<int64_t>(samples, 1);
}

void NoteCommit(RunParts& parts, const CommitRecord& record,
                CommitObservation observation, bool training_done, Turn& turn) {
  if (!record.skipped && record.loss_weight > 0) {
    parts.ledger.train_loss = record.loss;
  }
  if (!record.skipped) parts.ledger.NoteMeasures(record.measures);
  if (record.epoch_ended) {
    parts.pinned.EvaluateEpoch(record.data_epoch + 1, training_done);
  } else if (training_done && !parts.phase.draining()) {
    // The last step came within an epoch.
    parts.pinned.EvaluateEpoch(record.data_epoch, training_done);
  }
  turn.out.push_back(effect::Committed{.record = record,
                                       .observation = std::move(observation)});
  const int64_t every = parts.settings.options().checkpoint_every;
  if (every > 0 && parts.model.version().value() % every == 0) {
    turn.checkpoint = true;
  }
}

}  // namespace cohort
