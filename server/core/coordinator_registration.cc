// Registration of the coordinator: whose model the run begins with.

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/core/coordinator.h"

namespace cohort {

RegisterAnswer Coordinator::AnswerOf(
    const RegistrationBook::Entry& entry) const {
  return {.partitions =
              MakePartitions(entry.layout, settings_.options().partition_bytes),
          .loss_reference = LossReference(entry.plan)};
}

RegisterAnswer Coordinator::AnswerOfModel() const {
  return {.partitions = model_.model()->partitions,
          .loss_reference = model_.model()->plan.loss_reference};
}

void Coordinator::AwaitModel(const Sender& sender, const ModelLayout& layout,
                             const RunPlan& plan, Instant now, Effects& out) {
  registrations_.Add(
      sender.rank,
      {.incarnation = sender.incarnation, .layout = layout, .plan = plan});
  Worker& worker = ranks_[sender.rank];
  worker.waiting = true;
  if (ledger_.ended() || worker.leaves_because.has_value()) {
    DismissRegistrant(sender.rank, out);
    out.push_back(effect::Notify{.session = worker.session,
                                 .assignment = NextFor(worker, now)});
    return;
  }
  Advance(now, out);
  RepeatWait(sender.rank, now, out);
}

void Coordinator::AskForValues(Instant now, Effects& out) {
  if (model_.registered() || !registrations_.Due(ranks_.size())) return;
  const std::map<Rank, absl::Status> different = registrations_.TakeDifferent();
  for (const auto& [rank, status] : different) {
    const Worker& worker = ranks_[rank];
    out.push_back(effect::Log{
        .severity = Severity::kWarning,
        .worker = WorkerLife{.rank = rank, .incarnation = worker.incarnation},
        .text = absl::StrCat("rank ", rank.value(),
                             " is refused: ", status.message())});
    out.push_back(effect::RegisterAnswered{
        .rank = rank, .incarnation = worker.incarnation, .answer = status});
  }
  // Nothing is fixed while there is a doubt which model is meant.
  if (!different.empty()) return;
  const Rank rank = registrations_.AskLowest();
  const RegistrationBook::Entry& entry = registrations_.entries().at(rank);
  RegisterAnswer answer = AnswerOf(entry);
  answer.send_values = true;
  ranks_[rank].last_progress = now;
  out.push_back(effect::RegisterAnswered{.rank = rank,
                                         .incarnation = entry.incarnation,
                                         .answer = std::move(answer)});
  RepeatWaits(now, out);
}

absl::Status Coordinator::RegisterProgress(const Sender& sender, Instant now) {
  return Check(sender, now).status();
}

void Coordinator::CheckValuesDeadline(Instant now, Effects& out) {
  if (!registrations_.asked().has_value()) return;
  const Rank rank = *registrations_.asked();
  const Worker& worker = ranks_[rank];
  const absl::Duration idle = now - worker.last_progress;
  if (idle <= settings_.options().values_deadline) return;
  const std::string reason =
      absl::StrCat("asked for its initial weights, and nothing came for ",
                   SecondsText(idle));
  if (worker.state == Worker::State::kLive) {
    out.push_back(effect::EndSession{.session = worker.session,
                                     .status = absl::AbortedError(reason)});
  }
  Vacate(rank, VacancyReason::kDeadline, reason, now, out);
}

void Coordinator::AdmitRegistrants(Rank from, Instant now, Effects& out) {
  std::vector<Rank> admitted;
  for (const auto& [rank, entry] : registrations_.entries()) {
    admitted.push_back(rank);
    if (rank == from) continue;  // It is answered by its caller.
    out.push_back(effect::RegisterAnswered{.rank = rank,
                                           .incarnation = entry.incarnation,
                                           .answer = AnswerOfModel()});
  }
  for (Rank rank : admitted) Admit(rank);
  Advance(now, out);
  RepeatWaits(now, out);
}

void Coordinator::Admit(Rank rank) {
  registrations_.Remove(rank);
  Worker& worker = ranks_[rank];
  worker.registered = true;
  worker.ever_registered = true;
  worker.waiting = true;
}

void Coordinator::DismissRegistrant(Rank rank, Effects& out) {
  if (!registrations_.Contains(rank) || registrations_.asked() == rank) return;
  const RegistrationBook::Entry& entry = registrations_.entries().at(rank);
  out.push_back(effect::RegisterAnswered{.rank = rank,
                                         .incarnation = entry.incarnation,
                                         .answer = AnswerOf(entry)});
  registrations_.Remove(rank);
}

}  // namespace cohort
