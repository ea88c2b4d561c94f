// Rendezvous of the coordinator: moments in, combined moments out.

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/core/coordinator.h"
#include "server/core/moments_checks.h"

namespace cohort {
namespace {

// Rendezvous that a rank may wait in beside two a layer: as many siblings as
// one request holds.
constexpr int64_t kWaitsMin = 64;
// Moments of one rank that are kept until the step ends. Those of ResNet-50
// take 1 MB.
constexpr int64_t kHeldMomentsBytesMax = int64_t{256} << 20;

}  // namespace

absl::Status Coordinator::CheckHeldMoments(const Worker& worker,
                                           const ReduceKey& key) const {
  const RendezvousTable& table = round_->rendezvous;
  const int64_t waits_max =
      kWaitsMin + 2 * static_cast<int64_t>(model_.batch_norms().size());
  // Below that no rank can be above it, and nothing is counted.
  if (table.size() < waits_max || table.Has(key, worker.rank)) {
    return absl::OkStatus();
  }
  const RendezvousTable::Held held = table.HeldOf(worker.rank);
  if (held.waiting >= waits_max) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "rendezvous: rank ", worker.rank.value(), " waits for others in ",
        held.waiting, " calls, want at most ", waits_max,
        ": wait for the answers of some first"));
  }
  if (held.bytes >= kHeldMomentsBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "rendezvous: got moments of ", held.bytes, " bytes of rank ",
        worker.rank.value(), " in one step, want below ", kHeldMomentsBytesMax,
        ": the step has too many batch-norm calls"));
  }
  return absl::OkStatus();
}

absl::Status Coordinator::CheckReduce(const Worker& worker,
                                      const ReduceKey& key,
                                      const Moments& moments) const {
  if (key.step != round_->step || key.attempt != round_->attempt ||
      !IsMember(worker.rank)) {
    return absl::FailedPreconditionError(
        absl::StrCat("rendezvous: got step ", key.step.value(), " attempt ",
                     key.attempt.value(), " of rank ", worker.rank.value(),
                     ", want step ", round_->step.value(), " attempt ",
                     round_->attempt.value(), " of a member"));
  }
  const std::vector<BatchNormSpec>& layers = model_.batch_norms();
  COHORT_RETURN_IF_ERROR(CheckCallMoments(
      {.layer = key.layer, .call = key.call, .moments = moments}, layers));
  COHORT_RETURN_IF_ERROR(CheckHeldMoments(worker, key));
  if (key.phase != ReducePhase::kForward) return absl::OkStatus();
  return CheckSpread(layers[static_cast<size_t>(key.layer)], moments);
}

absl::Status Coordinator::Reduce(const Sender& sender, const ReduceKey& key,
                                 Moments moments, Instant now, Effects& out) {
  COHORT_ASSIGN_OR_RETURN(Worker * worker, Check(sender, now));
  COHORT_RETURN_IF_ERROR(RequireRegistered(*worker));
  const bool never = !settings_.sync() || !settings_.global();
  if (never && settings_.policy_epoch() == 1) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a rendezvous needs sync and global normalisation; the policy is ",
        PolicyText(settings_.policy())));
  }
  if (!ledger_.ended() && key.step > model_.version()) {
    return absl::FailedPreconditionError(
        absl::StrCat("rendezvous: got step ", key.step.value(), " of rank ",
                     worker->rank.value(), ", want at most ",
                     model_.version().value(), ", the newest version"));
  }
  const bool over =
      ledger_.ended() || never || key.step < model_.version() ||
      !round_.has_value() ||
      (key.step == round_->step && (key.attempt < round_->attempt ||
                                    round_->dropped.contains(worker->rank)));
  if (over) {
    out.push_back(effect::ReduceAborted{
        .rank = worker->rank,
        .incarnation = worker->incarnation,
        .key = key,
        .reason = absl::StrCat("step ", key.step.value(), " attempt ",
                               key.attempt.value(), " is over")});
    return absl::OkStatus();
  }
  COHORT_RETURN_IF_ERROR(CheckReduce(*worker, key, moments));
  const bool finite = IsFinite(moments);
  const RendezvousTable::Outcome outcome =
      round_->rendezvous.Contribute(key, worker->rank, std::move(moments), now);
  if (outcome.repeated) {
    CountArrival(
        *worker,
        outcome.mismatch ? Push::Arrival::kMismatch : Push::Arrival::kRepeated,
        out);
  }
  if (!finite && !outcome.repeated && !round_->nonfinite.has_value()) {
    round_->nonfinite =
        absl::StrCat("rank ", worker->rank.value(), ": moments of ",
                     model_.batch_norms()[static_cast<size_t>(key.layer)].name);
  }
  AnswerRendezvous(key, outcome, now, out);
  if (key.phase == ReducePhase::kForward && ClaimedByMoments()) {
    Claim(worker->rank, now, out);
  }
  SettleCalls(now, out);
  return absl::OkStatus();
}

void Coordinator::AnswerRendezvous(const ReduceKey& key,
                                   const RendezvousTable::Outcome& outcome,
                                   Instant now, Effects& out) {
  if (outcome.nonfinite && !round_->nonfinite.has_value()) {
    round_->nonfinite =
        absl::StrCat("combined moments of ",
                     model_.batch_norms()[static_cast<size_t>(key.layer)].name);
  }
  for (Rank rank : outcome.answer) {
    // Only from now on does it hold anyone up.
    ranks_[rank].last_progress = now;
    out.push_back(effect::ReduceResult{.rank = rank,
                                       .incarnation = ranks_[rank].incarnation,
                                       .key = key,
                                       .moments = outcome.result});
  }
}

}  // namespace cohort
