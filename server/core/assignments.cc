#include "server/core/assignments.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/core/describe_status.h"
#include "server/core/step/push_outcome.h"

namespace cohort {
namespace {

std::optional<Assignment> NextWork(Run& run, Worker& worker) {
  std::optional<Assignment> next = run.pinned.Next(
      worker.rank, /*may_collect=*/!run.driver->BlocksIssuedStep(worker.rank));
  if (!next.has_value()) {
    if (run.pinned.HoldsTraining()) return std::nullopt;
    next = run.driver->Next(worker);
    if (!next.has_value()) return std::nullopt;
    next->kind = AssignmentKind::kTrain;
    next->version = run.model.version();
    next->global_normalization = run.settings.global();
    const PolicyOptions& policy = run.settings.policy();
    next->gradients = policy.wire;
    next->score = run.pinned.score();
    const StatisticsKind first = policy.statistics.front();
    next->statistics = std::string(StatisticsName(first));
    next->moves_statistics =
        first == StatisticsKind::kSync && !policy.mixture_variance &&
        next->global_normalization && policy.normalization_group == 0;
    run.ledger.pushes_of(worker.rank)
        .Give({.sequence = worker.work.next_sequence(),
               .attempt = next->attempt});
  }
  next->policy_epoch = run.settings.policy_epoch();
  return next;
}

Assignment WaitAssignment(const Run& run, const Worker& worker, Instant now) {
  return {.kind = AssignmentKind::kWait,
          .sequence = worker.work.next_sequence(),
          .version = run.model.version(),
          .policy_epoch = run.settings.policy_epoch(),
          .reason = WaitText(run, now),
          .wait = WaitLeft(run, WaitedFor(run), now)};
}

}  // namespace

Assignment NextFor(Run& run, Worker& worker, Instant now) {
  worker.work.SetWaiting(false);
  worker.work.NoteProgress(now);
  if (run.phase.ended()) {
    return FinishedAssignment(run, run.phase.end_reason());
  }
  if (worker.leaves_because.has_value() && !worker.work.busy()) {
    Assignment leave = FinishedAssignment(run, *worker.leaves_because);
    leave.unfinished = true;
    return leave;
  }
  if (run.phase.started() && worker.registered) {
    if (!worker.work.busy()) {
      std::optional<Assignment> next = NextWork(run, worker);
      if (next.has_value()) worker.work.Give(*std::move(next));
    }
    if (worker.work.busy() && run.driver->GivesAgain(worker)) {
      return *worker.work.outstanding();
    }
  }
  worker.work.SetWaiting(true);
  return WaitAssignment(run, worker, now);
}

Assignment NextForRank(Run& run, Rank rank, Instant now) {
  if (run.ranks.Contains(rank)) return NextFor(run, run.ranks[rank], now);
  return FinishedAssignment(run, run.roster.SizeText());
}

void NotifyNext(Run& run, Worker& worker, Turn& turn) {
  turn.out.push_back(effect::Notify{
      .session = worker.session, .assignment = NextFor(run, worker, turn.now)});
}

void NotifyWaiting(Run& run, Turn& turn) {
  if (run.phase.ended()) return;
  for (Worker& worker : run.ranks.all()) {
    if (!worker.work.waiting() || !worker.usable()) continue;
    Assignment next = NextFor(run, worker, turn.now);
    if (next.kind == AssignmentKind::kWait) continue;
    turn.out.push_back(effect::Notify{.session = worker.session,
                                      .assignment = std::move(next)});
  }
}

void RepeatWait(Run& run, Rank rank, Turn& turn) {
  if (run.phase.ended() || !run.ranks.Contains(rank)) return;
  const Worker& worker = run.ranks[rank];
  if (!worker.work.waiting() || worker.state != Worker::State::kLive ||
      !(worker.registered || run.registrar.Contains(rank))) {
    return;
  }
  // Before the start nothing else tells one that is to leave that it may.
  const bool leaves = worker.leaves_because.has_value() && !worker.work.busy();
  turn.out.push_back(effect::Notify{
      .session = worker.session,
      .assignment = leaves ? FinishedAssignment(run, *worker.leaves_because)
                           : WaitAssignment(run, worker, turn.now)});
}

void RepeatWaits(Run& run, Turn& turn) {
  for (const Worker& worker : run.ranks.all())
    RepeatWait(run, worker.rank, turn);
}

namespace {

void SendAnswer(Run& run, effect::SendVerdict answer, Turn& turn) {
  if (run.ranks.Contains(answer.rank)) {
    Worker& worker = run.ranks[answer.rank];
    if (!worker.usable() || worker.incarnation != answer.incarnation) return;
    answer.verdict.next = NextFor(run, worker, turn.now);
    if (worker.work.TakeReturned()) {
      // It may repeat a push that was complete, and fail at a rendezvous or a
      // pull of the old step before it has a stream for the verdict. Only its
      // session is there for certain to tell it what comes next.
      turn.out.push_back(effect::Notify{.session = worker.session,
                                        .assignment = answer.verdict.next});
      // A data shard knows a new stream from the first gradient that is taken
      // there, and a push that was complete commits without: weights may have
      // found no stream. The worker reads them instead.
      if (run.settings.options().shards > 1) {
        answer.weights_partitions = 0;
      }
    }
  } else {
    // The change that its push had kept waiting has made the cohort smaller.
    answer.verdict.next = FinishedAssignment(run, run.roster.SizeText());
  }
  turn.out.push_back(std::move(answer));
}

}  // namespace

void SendAnswers(Run& run, std::vector<effect::SendVerdict>& answers,
                 Turn& turn) {
  // A commit answers every rank under the lock; growing would move them all.
  turn.out.reserve(turn.out.size() + answers.size());
  for (effect::SendVerdict& answer : std::exchange(answers, {})) {
    SendAnswer(run, std::move(answer), turn);
  }
}

absl::StatusOr<bool> ReportsOutstanding(const Worker& worker,
                                        AssignmentKind kind,
                                        Sequence sequence) {
  const std::optional<Assignment>& given = worker.work.outstanding();
  if (given.has_value() && given->sequence == sequence && given->kind == kind) {
    return true;
  }
  const bool other = given.has_value() && given->sequence == sequence;
  // The first is 1: a lower one is no old assignment either.
  if (!other && sequence >= Sequence(1) &&
      sequence < worker.work.next_sequence()) {
    return false;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("assignment ", sequence.value(),
                   other ? " does not take this kind of report from rank "
                         : " was not given to rank ",
                   worker.rank.value()));
}

}  // namespace cohort
