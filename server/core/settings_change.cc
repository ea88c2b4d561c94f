#include "server/core/settings_change.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/core/ledger/gradient_budget.h"
#include "server/core/ledger/step_shares.h"
#include "server/core/lost_ranks.h"
#include "server/core/optimizer/mask.h"
#include "server/core/optimizer/slots.h"
#include "server/core/optimizer/workers_optimizer.h"
#include "server/core/run_state.h"
#include "server/core/step/push_outcome.h"

namespace cohort {
namespace {

std::string OptimizerText(const PolicyOptions& before,
                          const PolicyOptions& after,
                          const OptimizerOptions& optimizer) {
  if (before.aggregation == after.aggregation) return "";
  std::string text =
      "; the learning rate stays that of the whole cohort's batch";
  if (after.aggregation != AggregationKind::kSync) {
    absl::StrAppend(&text,
                    ", and each push is weighted by its share of that batch");
  }
  if (!SlotsOf(optimizer.kind).empty()) {
    absl::StrAppend(
        &text,
        "; the optimizer's state is kept: it comes from mean gradients, whose "
        "scale does not depend on the number of pushes in a commit");
  }
  return text;
}

// The log, which is the list of events, says what has changed; the history also
// has the consequences.
void Record(Run& run, SettingValues changed, std::string text,
            absl::string_view consequences, const ChangeNote& note,
            Turn& turn) {
  ++run.ledger.counts.policy_changes;
  const Version version = run.model.version();
  const std::string why = NoteText(note);
  turn.Log(absl::StrCat("at step ", version.value(), ": ", text,
                        why.empty() ? "" : "; ", why));
  absl::StrAppend(&text, consequences);
  // The shards of a model that comes later take the settings of that time.
  if (run.model.registered()) {
    turn.out.push_back(command::Adopt{.changed = changed});
  }
  effect::PolicyChanged told{
      .record = run.settings.Record(std::move(changed), std::move(text), note,
                                    version, run.ledger.samples)};
  if (run.model.registered()) told.state = CaptureState(run);
  turn.out.push_back(std::move(told));
}

// What the server's flags keep of the workers' optimizer from taking effect;
// empty if nothing.
std::string KeptText(const CoordinatorOptions& options,
                     const CoordinatorOptions& target, const RunPlan& plan) {
  const absl::StatusOr<CoordinatorOptions> theirs =
      OptimizerOfPlan(options, plan);
  if (plan.optimizer.empty() || !theirs.ok()) return "";
  std::string text;
  for (const auto& [name, value] : Difference(target, *theirs)) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", name, " ",
                    SettingText(name, target), " (theirs: ", value, ")");
  }
  if (text.empty()) return "";
  return absl::StrCat(
      "flags of the server take precedence over the workers' "
      "optimizer: ",
      text);
}

// Whether the workers that are there can take other shares.
absl::Status CheckSharesFit(const CoordinatorOptions& before,
                            const CoordinatorOptions& target,
                            const RankTable& ranks) {
  const ShareOptions& shares = target.policy.shares;
  // Those in force are limited to what the workers take.
  if (!shares.given() || shares == before.policy.shares) {
    return absl::OkStatus();
  }
  const std::vector<Rank> members =
      ranks.Where([&target](const Worker& worker) {
        return worker.batch_size > 0 && worker.rank.value() < target.workers;
      });
  std::vector<int64_t> batch_sizes;
  for (const Rank rank : members) {
    const Worker& worker = ranks[rank];
    batch_sizes.push_back(worker.batch_size);
    if (!shares.automatic || worker.batch_size_max > 0) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "--shares: got auto, but rank ", rank.value(),
        " has no --batch_size_max (in a script job.data(batch_size_max=...)), "
        "and a larger share needs more memory; start it with one first"));
  }
  if (shares.weights.empty() || members.empty()) return absl::OkStatus();
  const ShareRule rule = ranks.ShareRuleOf(shares.weights, members);
  const StepShares wanted =
      ShareStep(batch_sizes, target.policy.global_batch,
                {.weights = rule.weights,
                 .batch_sizes_max = std::vector<int64_t>(members.size())});
  for (size_t i = 0; i < members.size(); ++i) {
    const int64_t most = rule.batch_sizes_max[i] * wanted.batches;
    if (most == 0 || wanted.samples[i] <= most) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "--shares: got ", SettingText("shares", target), ", ",
        wanted.samples[i], " samples a step for rank ", members[i].value(),
        ", want at most ", most, " (its --batch_size_max)"));
  }
  return absl::OkStatus();
}

void ResizeCohort(Run& run, int32_t workers, Turn& turn) {
  for (const Worker& worker : run.ranks.all()) {
    if (worker.rank.value() < workers) continue;
    run.pinned.Return(worker.rank);
    run.registrar.Dismiss(worker.rank, turn);
    // Where it was asked for its values, the next one is.
    run.registrar.Remove(worker.rank);
    if (worker.state != Worker::State::kLive) continue;
    turn.out.push_back(effect::Notify{
        .session = worker.session,
        .assignment = FinishedAssignment(run, run.roster.SizeText())});
  }
  run.roster.Resize(workers, turn.now);
}

}  // namespace

absl::Status CheckChange(const CoordinatorOptions& before,
                         const CoordinatorOptions& target,
                         const ModelStore& model, const RankTable& ranks,
                         const RunLedger& ledger) {
  COHORT_RETURN_IF_ERROR(Validate(target));
  for (const Worker& worker : ranks.all()) {
    if (worker.batch_size == 0) continue;
    COHORT_RETURN_IF_ERROR(
        CheckStepBatches(target.policy.global_batch, worker.batch_size));
  }
  COHORT_RETURN_IF_ERROR(CheckSharesFit(before, target, ranks));
  if (!model.registered()) return absl::OkStatus();
  if (target.optimizer.kind == OptimizerKind::kAuto) {
    return absl::InvalidArgumentError(
        "--optimizer: got auto, want a rule by name: the workers have "
        "registered, and auto takes only their registration");
  }
  const RunPlan& plan = model.model()->plan;
  if (plan.rates_by_workers || ledger.sent_learning_rate.has_value()) {
    COHORT_RETURN_IF_ERROR(CheckRatesUnchanged(before, target));
  }
  COHORT_RETURN_IF_ERROR(CheckPlanFits(target, plan));
  COHORT_RETURN_IF_ERROR(CheckInflight(target, model.layout()));
  COHORT_RETURN_IF_ERROR(CheckSlots(model.slots(), target.optimizer.kind));
  return MaskFor(target.optimizer, model.layout(), model.model()->partitions)
      .status();
}

absl::Status CheckLocalSwitch(const Run& run,
                              const CoordinatorOptions& target) {
  const CoordinatorOptions& before = run.settings.options();
  const bool begins = target.policy.local_steps > 0;
  if (!run.model.registered() || begins == (before.policy.local_steps > 0)) {
    return absl::OkStatus();
  }
  if (!run.model.model()->plan.optimizer.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--local_steps: got ", target.policy.local_steps,
        ", but the workers' program decides whether there are local steps; "
        "change it there and start another run"));
  }
  // The rule must have made a version, so that no slot of another is left.
  Version since;
  for (const PolicyRecord& record : run.settings.history()) {
    if (record.changed.contains("optimizer")) since = record.version;
  }
  const OptimizerKind kind = before.optimizer.kind;
  if (SlotsOf(kind).empty() &&
      (since < run.model.version() || run.model.version() == Version())) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "--local_steps: got ", target.policy.local_steps, " while ",
      OptimizerName(kind),
      " is in force, whose state is in the units of what was pushed so far; "
      "first change to --optimizer=sgd, which has none, and after the next "
      "step "
      "change to local steps and another optimizer together"));
}

std::string PauseText(const CoordinatorOptions& target, int32_t present) {
  const int32_t more = target.workers_min - present;
  if (more <= 0) return "";
  return absl::StrCat("; training pauses until ", more,
                      more == 1 ? " more worker joins" : " more workers join",
                      ", for at most ",
                      SecondsText(target.replacement_deadline));
}

void RequestChange(Run& run, const CoordinatorOptions& target,
                   const ChangeNote& note, Turn& turn) {
  RunSettings& settings = run.settings;
  const CoordinatorOptions before = settings.options();
  settings.AdoptAtOnce(target);
  const SettingValues at_once = Difference(before, settings.options());
  if (!at_once.empty()) {
    Record(run, at_once, ChangeText(before, settings.options()), "", note,
           turn);
  }
  if (at_once.contains("on_worker_loss") && settings.waits_for_lost()) {
    run.roster.MissVacant(turn.now);
  } else if (at_once.contains("on_worker_loss")) {
    WithdrawFromLost(run, "the others continue without it", turn);
  }
  // Settings that act at once may have let an earlier request take effect.
  settings.Request(target, note);
  if (settings.pending().has_value()) {
    WithdrawFromLost(run, "the policy changes", turn);
  }
}

bool RequestPlanned(Run& run, Turn& turn) {
  const RunSettings& settings = run.settings;
  if (!run.phase.started() || settings.pending().has_value()) return false;
  const PlannedChange* const due =
      run.settings.TakePlanned(run.model.version());
  if (due == nullptr) return false;
  absl::StatusOr<CoordinatorOptions> target = settings.TargetOf(due->values);
  absl::Status status = target.status();
  if (status.ok()) {
    status = CheckChange(settings.options(), *target, run.model, run.ranks,
                         run.ledger);
  }
  if (status.ok()) status = CheckLocalSwitch(run, *target);
  if (status.ok()) {
    RequestChange(run, *target, {.reason = "recorded, --policy_from"}, turn);
  } else {
    turn.end = {.outcome = RunOutcome::kRefused,
                .reason = absl::StrCat(
                    "--policy_from: the change at step ", due->version.value(),
                    " does not fit this run: ", status.message())};
  }
  turn.changed = true;
  return true;
}

void AdoptWorkersOptimizer(Run& run, const CoordinatorOptions& target,
                           const RunPlan& plan, Turn& turn) {
  const std::string kept = KeptText(run.settings.options(), target, plan);
  if (!kept.empty()) {
    turn.Warn(kept);
  }
  const CoordinatorOptions before = run.settings.options();
  const SettingValues changed = Difference(before, target);
  run.settings.AdoptOptimizer(target);
  const std::string local =
      target.policy.local_steps == 0 || plan.local_optimizer.empty()
          ? ""
          : absl::StrCat("local steps by ", plan.local_optimizer);
  if (plan.optimizer.empty() || changed.empty()) {
    if (!local.empty()) turn.Log(local);
    return;
  }
  Record(run, changed,
         absl::StrCat("the workers' optimizer: ", ChangeText(before, target),
                      local.empty() ? "" : "; ", local),
         "", {}, turn);
}

void PutChangeInForce(Run& run, Turn& turn) {
  RunSettings& settings = run.settings;
  const ChangeNote note = settings.pending()->note;
  // No push is in flight, so no rank is paused; those that were let in may
  // not be there after the change.
  run.flow.ResumeAll(turn);
  const CoordinatorOptions before = settings.options();
  const PolicyOptions policy_before = settings.policy();
  settings.AdoptPending();
  const CoordinatorOptions& options = settings.options();
  const PolicyOptions& policy = settings.policy();
  std::string text = ChangeText(before, options);
  run.model.AdoptOptimizer(options, policy);
  std::string consequences =
      run.model.AdoptStatistics(options.optimizer, policy);
  if (policy_before != policy) {
    absl::StrAppend(&text, ": ", PolicyText(policy));
    absl::StrAppend(&consequences,
                    OptimizerText(policy_before, policy, options.optimizer));
  }
  if (options.elastic()) run.roster.ForgetVacantShares();
  if (before.elastic() != options.elastic() ||
      before.on_worker_loss != options.on_worker_loss) {
    run.roster.MissVacant(turn.now);
  }
  if (options.workers != before.workers) {
    ResizeCohort(run, options.workers, turn);
  }
  // No push in progress has read an older version.
  run.model.HoldNone();
  Record(run, Difference(before, options), std::move(text), consequences, note,
         turn);
  // They may wait for others now.
  if (!run.phase.started()) turn.repeat_waits = true;
}

}  // namespace cohort
