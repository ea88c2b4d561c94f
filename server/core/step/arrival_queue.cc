#include "server/core/step/arrival_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "server/core/ledger/step_shares.h"
#include "server/core/step/push_checks.h"
#include "server/core/step/push_outcome.h"

namespace cohort {
// ---- messages of one push

ArrivedPush& ArrivalQueue::PushOf(const Worker& worker) {
  return assembling_.try_emplace(worker.rank, parts_.model.partitions())
      .first->second;
}

absl::Status ArrivalQueue::Open(Worker& worker, const PushOpening& opening,
                                Turn& turn) {
  COHORT_RETURN_IF_ERROR(
      CheckOpening(opening, {.rank = worker.rank,
                             .samples = SamplesOf(*worker.work.outstanding()),
                             .rates = RatesWanted(),
                             .oldest = worker.work.outstanding()->version,
                             .newest = parts_.model.version()}));
  worker.takes_statistics = opening.takes_statistics;
  const ArrivedPush::Arrival arrival =
      PushOf(worker).Open(KeyOf(*worker.work.outstanding()), opening);
  CountArrival(worker, arrival, parts_.ledger, turn);
  // Pushes do not complete each other here: each is let in whole, or what is
  // held of many could never be folded.
  if (arrival == ArrivedPush::Arrival::kNew) {
    parts_.flow.budget().Reserve(worker.rank, PushBytes(parts_.model.layout()));
  }
  return absl::OkStatus();
}

absl::StatusOr<Admission> ArrivalQueue::Gradient(
    Worker& worker, const GradientArrival& gradient, Turn& turn) {
  ArrivedPush& push = PushOf(worker);
  COHORT_RETURN_IF_ERROR(CheckOpened(push, gradient));
  // A partition that has come before takes no room.
  if (!push.Has(gradient.partition)) {
    if (!parts_.flow.budget().HasReserved(worker.rank)) {
      parts_.flow.Pause(worker.rank, gradient.bytes, turn.now);
      return Admission::kPaused;
    }
    parts_.flow.Forget(worker.rank);
  }
  const ArrivedPush::Arrival arrival =
      push.Add(gradient.partition, gradient.bytes, gradient.sampled_checksum,
               gradient.absent_slices);
  const bool fresh = arrival == ArrivedPush::Arrival::kNew;
  TakeGradient(worker, push.key(), gradient, /*held=*/fresh, turn);
  CountArrival(worker, arrival, parts_.ledger, turn);
  // Gradients that another shard receives may come after the closing.
  if (fresh && push.Complete(parts_.model.trainable_partitions())) {
    Enqueue(worker, turn);
  }
  return Admission::kTaken;
}

absl::Status ArrivalQueue::Close(Worker& worker, PushClosing closing,
                                 Turn& turn) {
  ArrivedPush& push = PushOf(worker);
  CountArrival(worker, push.Close(std::move(closing)), parts_.ledger, turn);
  if (!push.Complete(parts_.model.trainable_partitions())) {
    if (parts_.settings.options().shards > 1) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", worker.rank.value(),
                     " closed its push before it was complete"));
  }
  Enqueue(worker, turn);
  return absl::OkStatus();
}

void ArrivalQueue::Enqueue(Worker& worker, Turn& turn) {
  const auto push = assembling_.find(worker.rank);
  const auto piece = pieces_.find(worker.rank);
  COHORT_CHECK(push != assembling_.end() && piece != pieces_.end(),
               absl::StrCat("rank ", worker.rank.value(), " has no piece"));
  queue_.push_back({.rank = worker.rank,
                    .incarnation = worker.incarnation,
                    .key = KeyOf(*worker.work.outstanding()),
                    .arrived = std::move(push->second),
                    .piece = piece->second,
                    .since = turn.now});
  parts_.flow.Settle(worker.rank, queue_.back().arrived);
  assembling_.erase(push);
  pieces_.erase(piece);
  worker.work.End();
}

absl::Status ArrivalQueue::Reduce(Worker& worker, MomentsMessage message,
                                  Turn& turn) {
  return RefuseReduce(parts_, worker, message.key, turn);
}

bool ArrivalQueue::IsQueued(Rank rank, const PushKey& key) const {
  const auto is = [&](const QueuedPush& push) {
    return push.rank == rank && push.key == key;
  };
  return (applying_.has_value() && is(applying_->push())) ||
         std::any_of(queue_.begin(), queue_.end(), is);
}

void ArrivalQueue::Folded(FoldReport report, Turn& turn) {
  ResumePaused(turn);
  if (applying_.has_value()) applying_->Folded(std::move(report), turn);
}

void ArrivalQueue::ResumePaused(Turn& turn) {
  if (!parts_.flow.AnyPaused()) return;
  parts_.flow.Resume(
      [this](Rank rank, int64_t) {
        return parts_.flow.budget().HasReserved(rank);
      },
      turn);
}

// ---- the push that is being applied

bool ArrivalQueue::Advance(Turn& turn) {
  if (!applying_.has_value()) {
    if (queue_.empty()) return false;
    QueuedPush next = std::move(queue_.front());
    queue_.erase(queue_.begin());
    applying_.emplace(parts_, std::move(next), turn);
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
    parts_.flow.budget().Release(push.arrived.held_bytes());
    AnswerGivenUp(parts_, push.rank, push.key, turn);
  }
  for (const auto& [rank, push] : assembling_) {
    parts_.flow.Release(rank, push, turn);
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
  pieces_[worker.rank] = *piece;
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
  return static_cast<int64_t>(pieces_.size() + queue_.size()) +
         (applying_.has_value() ? 1 : 0);
}

void ArrivalQueue::HoldReadVersions() {
  if (parts_.settings.policy().staleness.rule != StalenessRule::kCompensate) {
    parts_.model.HoldNone();
    return;
  }
  // No push under way has read anything older than this.
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

void ArrivalQueue::Welcome(Worker& worker, bool anew, Turn& turn) {
  if (anew) FinishedBy(worker.rank) = StartOfCount(Leads());
  if (!worker.work.trains()) return;
  // The half-assembled push read older weights than the repetition will:
  // a new attempt keeps the two apart.
  DropAssembly(worker.rank, turn);
  const PushKey over = KeyOf(*worker.work.outstanding());
  worker.work.Repeat(parts_.model.version());
  const PushKey again = KeyOf(*worker.work.outstanding());
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
  DropAssembly(rank, turn);
  ResumePaused(turn);
  if (waits) return;
  Reissue(rank);
  parts_.ranks[rank].work.End();
}

void ArrivalQueue::DropAssembly(Rank rank, Turn& turn) {
  const auto push = assembling_.find(rank);
  if (push == assembling_.end()) return;
  parts_.flow.Release(rank, push->second, turn);
  assembling_.erase(push);
}

void ArrivalQueue::Reissue(Rank rank) {
  const auto piece = pieces_.find(rank);
  if (piece == pieces_.end()) return;
  parts_.ledger.cursor.Reissue(piece->second);
  pieces_.erase(piece);
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
  for (const auto& [rank, piece] : pieces_) pieces.push_back(piece);
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
         .counts = worker.usable() || (waits && worker.ever_registered)});
  }
  return leads;
}

std::vector<Rank> ArrivalQueue::Behind(Rank rank) const {
  if (!parts_.settings.bounded()) return {};
  std::vector<RankLead> leads = Leads();
  // A push that waits for its turn is over for the rank that sent it: one that
  // reconnects meanwhile asks for the next.
  int64_t& finished =
      leads[static_cast<size_t>(rank.value())].assignments_finished;
  for (const QueuedPush& push : queue_) finished += push.rank == rank;
  if (applying_.has_value()) finished += applying_->push().rank == rank;
  return BehindBy(parts_.settings.policy().lead_max, rank, leads);
}

}  // namespace cohort
