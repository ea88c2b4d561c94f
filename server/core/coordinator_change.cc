// Changes of settings while the run goes on.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "server/core/coordinator.h"
#include "server/core/optimizer/mask.h"
#include "server/core/optimizer/slots.h"

namespace cohort {
namespace {

std::string OptimizerText(const PolicyOptions& before,
                          const PolicyOptions& after,
                          const OptimizerOptions& optimizer) {
  if (before.aggregation == after.aggregation) return "";
  std::string text = "; the rate stays that of the whole cohort's batch";
  if (after.aggregation != AggregationKind::kSync) {
    absl::StrAppend(&text, ", each push counts by its share of it");
  }
  if (optimizer.uses_momentum()) {
    absl::StrAppend(&text,
                    "; momentum is kept: it averages mean gradients, whose "
                    "scale does not depend on how many make up a commit");
  }
  return text;
}

}  // namespace

absl::Status Coordinator::CheckChange(const CoordinatorOptions& target) const {
  COHORT_RETURN_IF_ERROR(Validate(target));
  if (!model_.registered()) return absl::OkStatus();
  COHORT_RETURN_IF_ERROR(CheckInflight(target, model_.layout()));
  COHORT_RETURN_IF_ERROR(
      CheckSlots(SlotsHeld(model_.current()->slots), target.optimizer.kind));
  return MaskFor(target.optimizer, model_.layout(), model_.model()->partitions)
      .status();
}

absl::StatusOr<ChangeAnswer> Coordinator::Change(const ChangeRequest& request,
                                                 Instant now, Effects& out) {
  if (!request.run_id.empty() && request.run_id != settings_.options().run_id) {
    return absl::FailedPreconditionError(absl::StrCat(
        "got run ", request.run_id, ", want ", settings_.options().run_id,
        ": this server holds another run"));
  }
  if (ledger_.ended()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the run is over: ", ledger_.end_reason()));
  }
  COHORT_ASSIGN_OR_RETURN(CoordinatorOptions target,
                          settings_.TargetOf(request.values));
  COHORT_RETURN_IF_ERROR(CheckChange(target));

  const SettingValues changed =
      Difference(SettingsOf(settings_.options()), target);
  const bool at_version =
      std::any_of(changed.begin(), changed.end(),
                  [](const auto& change) { return !ActsAtOnce(change.first); });
  ChangeAnswer answer{
      .policy_epoch = settings_.policy_epoch(),
      .version = model_.version(),
      .text = changed.empty()
                  ? "nothing differs from what is in force"
                  : ChangeText(SettingsOf(settings_.options()), changed)};
  // What a setting on auto becomes is part of the change.
  if (Resolve(target.policy) != settings_.policy()) {
    absl::StrAppend(&answer.text, ": ", PolicyText(target.policy));
  }
  if (changed.empty()) {
    // Asked back to what is in force: nothing is to be waited for any more.
    if (!request.dry_run && settings_.pending().has_value()) {
      settings_.Request(settings_.options());
      Advance(now, out);
    }
    return answer;
  }
  if (request.dry_run) {
    answer.pending = at_version;
    ++answer.policy_epoch;
    return answer;
  }
  ActAtOnce(target, now, out);
  if (at_version) {
    settings_.Request(std::move(target));
    WithdrawFromLost("the policy changes", now, out);
    Advance(now, out);
  }
  answer.pending = settings_.pending().has_value();
  answer.policy_epoch = settings_.policy_epoch() + (answer.pending ? 1 : 0);
  return answer;
}

void Coordinator::ActAtOnce(const CoordinatorOptions& target, Instant now,
                            Effects& out) {
  const SettingValues before = SettingsOf(settings_.options());
  const SettingValues changed = settings_.AdoptAtOnce(target);
  if (changed.empty()) return;
  std::string text = ChangeText(before, changed);
  Record(changed, std::move(text), out);
  if (changed.contains("on_worker_loss") &&
      settings_.options().on_worker_loss == OnWorkerLoss::kContinue) {
    WithdrawFromLost("the others go on without it", now, out);
    Advance(now, out);
  }
}

std::vector<Rank> Coordinator::InFlight() const {
  std::vector<Rank> ranks;
  for (const Worker& worker : ranks_.all()) {
    if (worker.outstanding.has_value()) ranks.push_back(worker.rank);
  }
  return ranks;
}

bool Coordinator::Quiet() const {
  if (settings_.sync()) return !round_.has_value() || round_->issued.empty();
  if (!arrivals_.empty() || applying_.has_value()) return false;
  return std::none_of(
      ranks_.all().begin(), ranks_.all().end(), [](const Worker& worker) {
        return worker.outstanding.has_value() &&
               worker.outstanding->kind == AssignmentKind::kTrain;
      });
}

void Coordinator::WithdrawFromLost(const std::string& reason, Instant now,
                                   Effects& out) {
  // Without what one rank holds a step may commit, and a change of the number
  // of ranks take effect.
  for (int32_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[Rank(i)].state != Worker::State::kVacant) continue;
    ReleaseOutstanding(Rank(i), reason, now, out);
  }
}

void Coordinator::TryChange(Instant now, Effects& out) {
  if (!settings_.pending().has_value() || !Quiet()) return;
  const SettingValues changed = settings_.pending()->changed;
  // Nobody is paused whose push is not in flight; those who were told to go on
  // may not be there after the change.
  ResumeAll(out);
  // A round that nobody was given leaves no trace.
  round_.reset();
  std::string text = ChangeText(SettingsOf(settings_.options()), changed);
  const PolicyOptions before = settings_.policy();
  const int32_t workers = settings_.options().workers;
  settings_.AdoptPending();
  model_.AdoptOptimizer(settings_.options(), settings_.policy());
  absl::StrAppend(&text, model_.AdoptStatistics(settings_.policy()));
  if (before != settings_.policy()) {
    absl::StrAppend(&text, ": ", PolicyText(settings_.policy()),
                    OptimizerText(before, settings_.policy(),
                                  settings_.options().optimizer));
  }
  for (Worker& worker : ranks_.all()) worker.assignments_finished = 0;
  if (settings_.options().workers != workers)
    ResizeCohort(settings_.options().workers, now, out);
  if (model_.registered()) HoldReadVersions();
  Record(changed, std::move(text), out);
  // They may wait for others now.
  if (!ledger_.started()) RepeatWaits(now, out);
}

std::string Coordinator::SizeText() const {
  return absl::StrCat("the run goes on with ", settings_.options().workers,
                      " workers");
}

void Coordinator::ResizeCohort(int32_t workers, Instant now, Effects& out) {
  for (Worker& worker : ranks_.all()) {
    if (worker.rank.value() < workers) continue;
    ReturnShard(worker);
    DismissRegistrant(worker.rank, out);
    // Where it was asked for its values, the next one is.
    registrations_.Remove(worker.rank);
    if (worker.state != Worker::State::kLive) continue;
    out.push_back(effect::Notify{.session = worker.session,
                                 .assignment = FinishedAssignment(SizeText())});
  }
  ranks_.Resize(workers);
  ledger_.Resize(workers);
  // A rank that comes later may take its time from now on.
  for (Worker& worker : ranks_.all()) {
    if (worker.ever_joined) continue;
    // Of a rank that comes back: what it was given before is over.
    ledger_.pushes_of(worker.rank).ForgetBelow(worker.next_sequence);
    worker.lost_at = now;
    worker.missed_since = now;
  }
}

void Coordinator::Record(SettingValues changed, std::string text,
                         Effects& out) {
  ++ledger_.counts.policy_changes;
  const Version version = model_.version();
  out.push_back(effect::Log{
      .text = absl::StrCat("at step ", version.value(), ": ", text)});
  out.push_back(effect::PolicyChanged{
      .record = settings_.Record(std::move(changed), std::move(text), version,
                                 ledger_.samples())});
}

absl::Status Coordinator::CheckHeld(Rank rank) const {
  if (!ranks_.Contains(rank)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "got rank ", rank.value(), ", want 0 to ", ranks_.size() - 1));
  }
  if (ledger_.ended()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the run is over: ", ledger_.end_reason()));
  }
  if (ranks_[rank].state == Worker::State::kVacant) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", rank.value(), " is vacant"));
  }
  return absl::OkStatus();
}

absl::Status Coordinator::Evict(Rank rank, const std::string& reason,
                                Instant now, Effects& out) {
  COHORT_RETURN_IF_ERROR(CheckHeld(rank));
  const Worker& worker = ranks_[rank];
  const std::string why = absl::StrCat("evicted: ", reason);
  if (worker.state == Worker::State::kLive) {
    out.push_back(effect::EndSession{.session = worker.session,
                                     .status = absl::AbortedError(why)});
  }
  Vacate(rank, VacancyReason::kAdmin, why, now, out);
  return absl::OkStatus();
}

absl::Status Coordinator::DrainWorker(Rank rank, const std::string& reason,
                                      Instant now, Effects& out) {
  COHORT_RETURN_IF_ERROR(CheckHeld(rank));
  Worker& worker = ranks_[rank];
  worker.leaves_because = absl::StrCat("drained: ", reason);
  out.push_back(effect::Log{
      .worker = WorkerLife{.rank = rank, .incarnation = worker.incarnation},
      .text = absl::StrCat("rank ", rank.value(),
                           " leaves after what it is at: ", reason)});
  // One that waits has nothing to finish.
  if (registrations_.Contains(rank) && registrations_.asked() != rank) {
    DismissRegistrant(rank, out);
    out.push_back(effect::Notify{.session = worker.session,
                                 .assignment = NextFor(worker, now)});
  }
  NotifyWaiting(now, out);
  return absl::OkStatus();
}

PolicyView Coordinator::Policy(Instant now) const {
  PolicyView view{.policy_epoch = settings_.policy_epoch(),
                  .text = PolicyText(settings_.policy()),
                  .settings = SettingsOf(settings_.options()),
                  .history = settings_.history()};
  if (settings_.pending().has_value()) {
    view.pending = settings_.pending()->changed;
    view.pending_reason = WaitText(now);
  }
  return view;
}

}  // namespace cohort
