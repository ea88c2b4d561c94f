#include "server/core/step/step_calls.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/core/statistics/call_names.h"
#include "server/core/statistics/moments_checks.h"
#include "server/core/step/call_check.h"
#include "server/core/step/push_outcome.h"
#include "server/core/step/reduce_checks.h"

namespace cohort {

absl::Status StepCalls::Take(Round& round, Worker& worker,
                             MomentsMessage message, Turn& turn) {
  const ReduceKey& key = message.key;
  const std::vector<BatchNormSpec>& layers = parts_.model.batch_norms();
  COHORT_RETURN_IF_ERROR(
      CheckReduce(round, layers, worker.rank, key, message.moments));
  const bool finite = IsUsable(key.place.phase, message.moments);
  RendezvousTable::Outcome outcome = round.rendezvous.Contribute(
      key, worker.rank, std::move(message.moments), turn.now, message.extents);
  if (outcome.fresh) worker.work.NoteProgress(turn.now);
  if (outcome.repeated) {
    CountArrival(worker,
                 outcome.mismatch ? ArrivedPush::Arrival::kMismatch
                                  : ArrivedPush::Arrival::kRepeated,
                 parts_.ledger, turn);
  } else if (round.pushes[worker.rank].closed()) {
    round.progress.NoteFault(
        CallAfterClosing(round, worker.rank, key.place, layers));
  }
  if (!finite && !outcome.repeated) {
    round.progress.NoteNonfinite(absl::StrCat("rank ", worker.rank.value(),
                                              ": moments of ",
                                              CallNameOf(key.place, layers)));
  }
  Answer(round, key, std::move(outcome), turn);
  return absl::OkStatus();
}

void StepCalls::Answer(Round& round, const ReduceKey& key,
                       RendezvousTable::Outcome outcome, Turn& turn) {
  if (outcome.fold.has_value()) {
    turn.out.push_back(effect::FoldMoments{.job = *std::move(outcome.fold)});
  }
  if (outcome.nonfinite) {
    round.progress.NoteNonfinite(
        absl::StrCat("combined moments of ",
                     CallNameOf(key.place, parts_.model.batch_norms())));
  }
  for (Rank rank : outcome.answer) {
    Worker& worker = parts_.ranks[rank];
    // Only from now on does it block others. A stored answer that it has had
    // before is no news.
    if (!outcome.repeated || outcome.fresh) worker.work.NoteProgress(turn.now);
    turn.out.push_back(effect::ReduceResult{.rank = rank,
                                            .incarnation = worker.incarnation,
                                            .key = key,
                                            .moments = outcome.result});
  }
}

void StepCalls::NoteClosing(Round& round, Rank rank) {
  round.rendezvous.NoteClosed(rank);
  if (parts_.settings.global()) {
    std::optional<Round::Fault> fault =
        FindClosingFault(round, rank, parts_.model.batch_norms());
    if (fault.has_value()) round.progress.NoteFault(*std::move(fault));
  }
  std::optional<std::string> bad =
      NonfiniteMoments(parts_.model, rank, round.pushes[rank]);
  if (!bad.has_value()) return;
  round.progress.nonfinite_closings[rank] = *std::move(bad);
}

CallsDecision StepCalls::Settle(Round& round, Turn& turn) {
  Round::Progress& progress = round.progress;
  if (progress.calls_agree || round.pushes.all().empty()) return {};
  const std::optional<Round::Fault> fault =
      std::exchange(progress.fault, std::nullopt);
  if (fault.has_value()) {
    if (round.IsMember(fault->rank)) return DecideFault(*fault);
    // The step is full without it.
    turn.changed = true;
  }
  // Other ranks may still become members.
  if (!round.fixed()) return {};
  const bool global = parts_.settings.global();
  if (global) {
    CallsDecision decision = CompleteWithoutAbsent(round, turn);
    if (decision.action != CallsAction::kContinue) return decision;
  }
  // A closed push does not change any more.
  if (!round.pushes.AllClosed()) return {};
  std::optional<std::string> unpaired =
      FindUnpairedCalls(round, parts_.model.batch_norms(), global);
  if (unpaired.has_value()) {
    return {.action = CallsAction::kEnd, .why = *std::move(unpaired)};
  }
  progress.calls_agree = true;
  return {};
}

CallsDecision StepCalls::DecideFault(const Round::Fault& fault) {
  if (!fault.contradicts_itself) {
    return {.action = CallsAction::kRepeat,
            .why = absl::StrCat(fault.text, "; the step is repeated")};
  }
  if (fenced_.insert(fault.rank).second) {
    return {
        .action = CallsAction::kFence, .why = fault.text, .rank = fault.rank};
  }
  return {.action = CallsAction::kEnd,
          .why = absl::StrCat(
              fault.text, "; rank ", fault.rank.value(),
              " was already replaced because of such a difference; start all "
              "workers with the same program and model")};
}

// Each group continues even if another one is doomed, so what an attempt
// teaches does not depend on which of them is faster.
CallsDecision StepCalls::CompleteWithoutAbsent(Round& round, Turn& turn) {
  RendezvousTable& rendezvous = round.rendezvous;
  for (size_t group : rendezvous.TakeRested()) {
    if (rendezvous.IsDoomed(group) || !rendezvous.members().AnyWaits(group)) {
      continue;
    }
    const std::vector<CallPlace> open = rendezvous.OpenForward(group);
    if (open.empty()) {
      return {.action = CallsAction::kEnd,
              .why = StuckText(round, group, parts_.model.batch_norms())};
    }
    const CallPlace& first = open[parts_.ledger.call_order.First(open)];
    Answer(round,
           {.step = round.step(), .attempt = round.attempt(), .place = first},
           rendezvous.CompleteWith(first, group, turn.now), turn);
  }
  if (!rendezvous.members().AllAtRest() || !rendezvous.FirstLate()) return {};
  return DecideDoomed(round);
}

CallsDecision StepCalls::DecideDoomed(const Round& round) {
  const std::vector<BatchNormSpec>& layers = parts_.model.batch_norms();
  if (!parts_.ledger.call_order.Learn(round.rendezvous.calls().Sequences(),
                                      round.step())) {
    return {.action = CallsAction::kEnd,
            .why = ContradictionText(round, layers)};
  }
  ++parts_.ledger.counts.steps_repeated_for_order;
  return {.action = CallsAction::kRepeat,
          .why = absl::StrCat(LateText(round, layers),
                              "; the step is repeated in the order of calls "
                              "that this has shown")};
}

}  // namespace cohort
