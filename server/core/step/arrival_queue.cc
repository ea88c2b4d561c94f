#include "server/core/step/arrival_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "server/core/ledger/step_shares.h"
#include "server/core/step/push_checks.h"
#include "server/core/step/push_outcome.h"

namespace cohort {

// ---- messages of one push

absl::StatusOr<bool> ArrivalQueue::TakesUpdate(Rank rank, const PushKey& key,
                                               const PushOpening& opening) {
  if (key.update == 0 && !opening.continues) return true;
  return absl::FailedPreconditionError(
      absl::StrCat("push of rank ", rank.value(),
                   ": a step of several optimizers needs --aggregation=sync; "
                   "the policy is ",
                   PolicyText(parts_.settings.policy())));
}

ArrivedPush::Arrival ArrivalQueue::EnterOpening(Worker& worker,
                                                const PushKey& key,
                                                const PushOpening& opening) {
  return assembling_.at(worker.rank).push.Open(key, opening);
}

ArrivedPush::Arrival ArrivalQueue::EnterGradient(
    Rank rank, const GradientArrival& gradient) {
  return assembling_.at(rank).push.Add(gradient.partition, gradient.bytes,
                                       gradient.sampled_checksum,
                                       gradient.absent_slices);
}

void ArrivalQueue::TookGradient(Worker& worker, int32_t, bool fresh,
                                Turn& turn) {
  // Gradients that another shard receives may come after the closing.
  if (fresh &&
      PushOf(worker.rank)->Complete(parts_.model.trainable_partitions())) {
    Enqueue(worker, turn);
  }
}

absl::Status ArrivalQueue::Close(Worker& worker, const PushKey& /*key*/,
                                 PushClosing closing, Turn& turn) {
  ArrivedPush& push = assembling_.at(worker.rank).push;
  CountArrival(worker, push.Close(std::move(closing)), parts_.ledger, turn);
  if (!push.Complete(parts_.model.trainable_partitions())) {
    // With several shards the closing, which goes to shard 0, may overtake
    // gradients at the others. With one, the stream keeps their order.
    if (parts_.settings.options().shards > 1) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", worker.rank.value(),
                     " closed its push before it was complete"));
  }
  Enqueue(worker, turn);
  return absl::OkStatus();
}

void ArrivalQueue::Enqueue(Worker& worker, Turn& turn) {
  const auto at = assembling_.find(worker.rank);
  queue_.push_back({.rank = worker.rank,
                    .incarnation = worker.incarnation,
                    .arrived = std::move(at->second.push),
                    .piece = at->second.piece,
                    .since = turn.now});
  assembling_.erase(at);
  parts_.flow.Settle(worker.rank, queue_.back().arrived);
  worker.work.End();
}

absl::Status ArrivalQueue::Reduce(Worker& worker, MomentsMessage message,
                                  Turn& turn) {
  return RefuseReduce(parts_, worker, message.key, turn);
}

bool ArrivalQueue::IsQueued(Rank rank, const PushKey& key) const {
  const auto is = [&](const QueuedPush& push) {
    return push.rank == rank && push.arrived.key() == key;
  };
  return (applying_.has_value() && is(applying_->push())) ||
         std::any_of(queue_.begin(), queue_.end(), is);
}

void ArrivalQueue::Folded(FoldReport report, Turn& turn) {
  ResumePaused(turn);
  if (applying_.has_value()) applying_->Folded(std::move(report), turn);
}

// ---- the push that is being applied

bool ArrivalQueue::Advance(Turn& turn) {
  if (!applying_.has_value()) {
    if (queue_.empty()) return false;
    QueuedPush next = std::move(queue_.front());
    queue_.erase(queue_.begin());
    applying_.emplace(parts_, std::move(next), turn);
    // A push that is dropped has nothing to fold and is over in this call, so
    // between two events `applying_` always has a commit.
    if (applying_->commit() != nullptr) return true;
  }
  if (!applying_->complete()) return false;
  Commit(turn);
  return true;
}

void ArrivalQueue::Commit(Turn& turn) {
  turn.changed = true;
  PushCommit push = *std::move(applying_);
  applying_.reset();
  push.Finish(turn);
  const CommitRecord record = push.Count(turn);
  ++FinishedBy(push.push().rank);
  NoteCommit(parts_, record, push.TakeObservation(turn.now), TrainingDone(),
             turn);
  HoldReadVersions();
  ResumePaused(turn);
  push.Answer(turn);
}

void ArrivalQueue::GiveUp(Turn& turn) {
  if (applying_.has_value()) applying_->GiveUp(turn);
  for (const QueuedPush& push : queue_) {
    DropGradients(push.rank, push.arrived, turn);
    parts_.flow.budget().Release(push.arrived.unfolded_bytes());
    AnswerGivenUp(parts_, push.rank, push.arrived.key(), turn);
  }
  for (const auto& [rank, assembly] : assembling_) {
    parts_.flow.Release(rank, assembly.push, turn);
  }
}

// ---- assignments

std::optional<Assignment> ArrivalQueue::Next(Worker& worker) {
  if (parts_.phase.draining() || parts_.settings.pending().has_value() ||
      parts_.ranks.present() < parts_.settings.workers_min() ||
      NoMoreSteps(UnderWay()) || !Behind(worker.rank).empty()) {
    return std::nullopt;
  }
  const std::optional<DataCursor::Piece> piece =
      parts_.ledger.cursor.Next(ShareOf(worker));
  if (!piece.has_value()) return std::nullopt;
  assembling_.try_emplace(
      worker.rank, Assembly{.push = ArrivedPush(parts_.model.partitions()),
                            .piece = *piece});
  HoldReadVersions();
  // One that comes from another worker may be longer than its own share.
  return Assignment{
      .data_epoch = piece->epoch,
      .range = piece->range,
      .batches = BatchesFor(piece->range.size(), worker.batch_size)};
}

int64_t ArrivalQueue::ShareOf(const Worker& worker) const {
  const int64_t global_batch = parts_.settings.policy().global_batch;
  const std::vector<Rank> ranks = Candidates();
  const auto at = std::find(ranks.begin(), ranks.end(), worker.rank);
  if (global_batch == 0 || at == ranks.end()) return worker.batch_size;
  return ShareStep(BatchSizesOf(ranks), global_batch)
      .samples[static_cast<size_t>(at - ranks.begin())];
}

int64_t ArrivalQueue::UnderWay() const {
  return static_cast<int64_t>(assembling_.size() + queue_.size()) +
         (applying_.has_value() ? 1 : 0);
}

void ArrivalQueue::HoldReadVersions() {
  // Only delay compensation reads the weights that a push was computed at.
  if (parts_.settings.policy().staleness.rule != StalenessRule::kCompensate) {
    parts_.model.HoldNone();
    return;
  }
  // No push in progress has read anything older than this.
  Version oldest = parts_.model.version();
  for (const Worker& worker : parts_.ranks.all()) {
    if (worker.work.trains()) {
      oldest = std::min(oldest, worker.work.outstanding()->version);
    }
  }
  for (const QueuedPush& push : queue_) {
    oldest = std::min(oldest, push.arrived.opening().version);
  }
  parts_.model.HoldFrom(oldest);
}

void ArrivalQueue::Welcome(Worker& worker, bool fresh, Turn& turn) {
  if (fresh) FinishedBy(worker.rank) = StartOfCount(Leads());
  if (!worker.work.trains()) return;
  // The half-assembled push read older weights than the repetition will:
  // a new attempt keeps the two apart.
  Restart(worker.rank, turn);
  const PushKey over = worker.work.key();
  worker.work.Repeat(parts_.model.version());
  const PushKey again = worker.work.key();
  PushHistory& history = parts_.ledger.pushes_of(worker.rank);
  history.Decide(over,
                 {.verdict = Verdict::kDropped,
                  .version = parts_.model.version(),
                  .reason = absl::StrCat(
                      "attempt ", over.attempt.value(),
                      " is over: the assignment was issued again as attempt ",
                      again.attempt.value())});
  history.Give(again);
}

void ArrivalQueue::RankLost(Rank rank, bool waits, const std::string&,
                            Turn& turn) {
  // A replacement computes the whole push again, from newer weights.
  Restart(rank, turn);
  ResumePaused(turn);
  if (waits) return;
  const auto at = assembling_.find(rank);
  if (at != assembling_.end()) {
    parts_.ledger.cursor.Reissue(at->second.piece);
    assembling_.erase(at);
  }
  parts_.ranks[rank].work.End();
}

void ArrivalQueue::Restart(Rank rank, Turn& turn) {
  const auto at = assembling_.find(rank);
  if (at == assembling_.end()) return;
  parts_.flow.Release(rank, at->second.push, turn);
  at->second.push = ArrivedPush(parts_.model.partitions());
}

bool ArrivalQueue::Quiet() const {
  if (!queue_.empty() || applying_.has_value()) return false;
  const std::vector<Worker>& workers = parts_.ranks.all();
  return std::none_of(workers.begin(), workers.end(), [](const Worker& worker) {
    return worker.work.trains();
  });
}

std::vector<DataCursor::Piece> ArrivalQueue::Undecided() const {
  std::vector<DataCursor::Piece> pieces;
  for (const auto& [rank, assembly] : assembling_) {
    pieces.push_back(assembly.piece);
  }
  for (const QueuedPush& push : queue_) pieces.push_back(push.piece);
  if (applying_.has_value()) pieces.push_back(applying_->push().piece);
  return pieces;
}

// ---- how far ranks are apart

std::vector<RankLead> ArrivalQueue::Leads() const {
  const bool waits = parts_.settings.waits_for_lost();
  std::vector<RankLead> leads;
  for (const Worker& worker : parts_.ranks.all()) {
    leads.push_back(
        {.rank = worker.rank,
         .assignments_finished = finished_[leads.size()],
         .counts = worker.usable() || (waits && worker.keeps_share())});
  }
  return leads;
}

std::vector<Rank> ArrivalQueue::Behind(Rank rank) const {
  if (!parts_.settings.bounded()) return {};
  std::vector<RankLead> leads = Leads();
  // A push that waits for its turn is over for the rank that sent it: one that
  // reconnects before its turn asks for the next.
  int64_t& finished =
      leads[static_cast<size_t>(rank.value())].assignments_finished;
  for (const QueuedPush& push : queue_) finished += push.rank == rank;
  if (applying_.has_value()) finished += applying_->push().rank == rank;
  return BehindBy(parts_.settings.policy().lead_max, rank, leads);
}

}  // namespace cohort
