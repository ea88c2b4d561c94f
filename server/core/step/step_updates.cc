#include "server/core/step/step_updates.h"

#include "absl/strings/str_cat.h"

namespace cohort {
namespace {

std::string UpdateText(const PushOpening& opening) {
  return absl::StrCat(
      "of optimizers[", opening.optimizer, "]",
      opening.continues ? ", which another one follows" : ", the last one");
}

}  // namespace

absl::StatusOr<bool> EnterUpdate(const RunParts& parts, Round& round, Rank rank,
                                 const PushKey& key,
                                 const PushOpening& opening) {
  if (key.update == 0 && !opening.continues && round.update() == 0 &&
      !round.Continues()) {
    return true;
  }
  const PolicyOptions& policy = parts.settings.policy();
  if (policy.pushes_min > 0 || policy.local_steps > 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "push of rank ", rank.value(),
        ": a step of several optimizers needs all members and a gradient of "
        "each: got --min_pushes=",
        policy.pushes_min, " and --local_steps=", policy.local_steps,
        ", want neither"));
  }
  Round::Progress& progress = round.progress;
  if (key.update < round.update()) {
    NoteBehind(round, rank);
    return false;
  }
  if (key.update == round.update() + 1 && round.UpdateDone()) {
    round.NextUpdate();
  }
  if (key.update != round.update()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "push of rank ", rank.value(), ": got update ", key.update, " of step ",
        round.step().value(), ", want ", round.update(),
        round.Continues() ? ", whose weights are not there yet" : ""));
  }
  const PushOpening* const other = round.pushes.AnyOpening();
  if (other == nullptr || (other->optimizer == opening.optimizer &&
                           other->continues == opening.continues)) {
    return true;
  }
  progress.end_because =
      absl::StrCat("step ", round.step().value(), ": update ", key.update,
                   " of rank ", rank.value(), " is ", UpdateText(opening),
                   ", and that of other ranks ", UpdateText(*other),
                   "; all workers must step the same optimizers, in one order");
  return false;
}

void NoteBehind(Round& round, Rank rank) {
  round.progress.repeat_because = absl::StrCat(
      "rank ", rank.value(), " begins the step again, which is at update ",
      round.update());
}

PushKey KeyOf(const Round& round, const Worker& worker) {
  PushKey key = worker.work.key();
  key.update = round.update();
  return key;
}

bool AwaitsUpdate(const Round& round, Rank rank) {
  return round.Continues() && round.pushes.HasGradients(rank) &&
         !round.UpdateDone();
}

void NoteGradient(Round& round, Rank rank) {
  if (AwaitsUpdate(round, rank)) round.rendezvous.SetAtRest(rank, true);
  NoteFold(round);
}

void NoteFold(Round& round) {
  if (!round.UpdateDone()) return;
  for (const auto& [rank, push] : round.pushes.all()) {
    round.rendezvous.SetAtRest(rank, false);
  }
}

void SendUnchanged(RunParts& parts, const Round& round, int32_t partition,
                   Turn& turn) {
  if (!round.Continues() || !round.pushes.HasArrived(partition)) return;
  for (Rank rank : round.members()) {
    const Worker& worker = parts.ranks[rank];
    if (!worker.usable() || !worker.work.busy()) continue;
    turn.out.push_back(command::SendWeights{.rank = rank,
                                            .incarnation = worker.incarnation,
                                            .key = KeyOf(round, worker),
                                            .partition = partition,
                                            .version = round.step()});
  }
}

}  // namespace cohort
