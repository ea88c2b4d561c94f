#include "server/core/membership/registrar.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/core/ledger/gradient_budget.h"
#include "server/core/optimizer/mask.h"
#include "server/core/optimizer/workers_optimizer.h"

namespace cohort {
namespace {

void Answer(const Worker& worker, absl::StatusOr<RegisterAnswer> answer,
            Turn& turn) {
  turn.out.push_back(effect::RegisterAnswered{.rank = worker.rank,
                                              .incarnation = worker.incarnation,
                                              .answer = std::move(answer)});
}

}  // namespace

absl::Status Registrar::Check(Rank rank, const ModelLayout& layout,
                              const RunPlan& plan) const {
  COHORT_RETURN_IF_ERROR(Validate(layout));
  COHORT_RETURN_IF_ERROR(Validate(plan));
  if (model_.registered()) {
    return CheckSameModel(layout, plan, model_.layout(), model_.model()->plan,
                          "the run's");
  }
  COHORT_ASSIGN_OR_RETURN(const CoordinatorOptions options,
                          TakeWorkersOptimizer(settings_.options(), plan));
  COHORT_RETURN_IF_ERROR(CheckPlanFits(options, plan));
  if (plan.rates_by_workers && !plan.optimizer.empty()) {
    COHORT_RETURN_IF_ERROR(CheckRatesAreTheWorkers(options, plan));
  }
  COHORT_RETURN_IF_ERROR(
      MaskFor(options.optimizer, layout,
              MakePartitions(layout, options.partition_bytes))
          .status());
  COHORT_RETURN_IF_ERROR(CheckInflight(options, layout));
  COHORT_RETURN_IF_ERROR(CheckShards(options, layout));
  // Until a worker is asked, a lower rank may still come.
  if (!asked().has_value()) return absl::OkStatus();
  const auto* ruling = book_.Ruling();
  if (ruling->first == rank) return absl::OkStatus();
  return CheckSameModel(layout, plan, ruling->second.layout,
                        ruling->second.plan,
                        absl::StrCat("that of worker ", ruling->first.value(),
                                     ", which defines the run"));
}

void Registrar::Await(const Sender& sender, const ModelLayout& layout,
                      const RunPlan& plan) {
  book_.Add(
      sender.rank,
      {.incarnation = sender.incarnation, .layout = layout, .plan = plan});
  ranks_[sender.rank].work.SetWaiting(true);
}

bool Registrar::Ask(Turn& turn) {
  if (model_.registered() || !book_.Due(settings_.options().workers_needed()))
    return false;
  const std::map<Rank, absl::Status> different = book_.TakeDifferent();
  for (const auto& [rank, status] : different) {
    const Worker& worker = ranks_[rank];
    turn.Warn(
        absl::StrCat("rank ", rank.value(), " is refused: ", status.message()),
        worker.process());
    Answer(worker, status, turn);
  }
  // While layouts differ, the right one is unknown.
  if (!different.empty()) return true;
  const std::optional<Rank> asked = book_.AskLowest();
  if (!asked.has_value()) {
    RefuseAll(turn);
    return true;
  }
  const Rank rank = *asked;
  const RegistrationBook::Entry& entry = book_.entries().at(rank);
  RegisterAnswer answer = AnswerOf(entry.layout, entry.plan);
  answer.send_values = true;
  ranks_[rank].work.NoteProgress(turn.now);
  Answer(ranks_[rank], std::move(answer), turn);
  turn.repeat_waits = true;
  return true;
}

void Registrar::RefuseAll(Turn& turn) {
  std::vector<Rank> refused;
  for (const auto& [rank, entry] : book_.entries()) {
    refused.push_back(rank);
    Answer(ranks_[rank],
           absl::FailedPreconditionError(
               "register: every client that waits has closed its side of the "
               "stream, so none of them can send the initial values; keep the "
               "stream open until the answer"),
           turn);
  }
  for (Rank rank : refused) book_.Remove(rank);
}

std::optional<std::string> Registrar::OverdueText(Instant now) const {
  if (!asked().has_value()) return std::nullopt;
  const absl::Duration idle = now - ranks_[*asked()].work.last_progress();
  if (idle <= settings_.options().values_deadline) return std::nullopt;
  return absl::StrCat(
      "the server requested its initial weights and received nothing for ",
      SecondsText(idle));
}

void Registrar::AdmitAll(Rank from, Turn& turn) {
  std::vector<Rank> admitted;
  for (const auto& [rank, entry] : book_.entries()) {
    admitted.push_back(rank);
    if (rank != from) Answer(ranks_[rank], AnswerOfModel(), turn);
  }
  for (Rank rank : admitted) Admit(rank);
}

void Registrar::Admit(Rank rank) {
  book_.Remove(rank);
  Worker& worker = ranks_[rank];
  worker.registered = true;
  worker.ever_registered = true;
  worker.work.SetWaiting(true);
}

void Registrar::Dismiss(Rank rank, Turn& turn) {
  if (!Contains(rank) || asked() == rank) return;
  const RegistrationBook::Entry& entry = book_.entries().at(rank);
  Answer(ranks_[rank], AnswerOf(entry.layout, entry.plan), turn);
  book_.Remove(rank);
}

RegisterAnswer Registrar::AnswerOf(const ModelLayout& layout,
                                   const RunPlan& plan) const {
  return {
      .partitions = MakePartitions(layout, settings_.options().partition_bytes),
      .loss_reference = LossReference(plan)};
}

RegisterAnswer Registrar::AnswerOfModel() const {
  return {.partitions = model_.model()->partitions,
          .loss_reference = model_.model()->plan.loss_reference};
}

}  // namespace cohort
