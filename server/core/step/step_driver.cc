#include "server/core/step/step_driver.h"

#include "common/status_macros.h"
#include "server/core/optimizer/group_options.h"
#include "server/core/optimizer/workers_optimizer.h"
#include "server/core/step/arrival_queue.h"
#include "server/core/step/push_checks.h"
#include "server/core/step/push_outcome.h"
#include "server/core/step/sync_rounds.h"

namespace cohort {

std::unique_ptr<StepDriver> MakeStepDriver(RunParts& parts) {
  if (parts.settings.sync()) return std::make_unique<SyncRounds>(parts);
  return std::make_unique<ArrivalQueue>(parts);
}

absl::Status StepDriver::Open(Worker& worker, const PushKey& key,
                              const PushOpening& opening, Turn& turn) {
  const Assignment& given = *worker.work.outstanding();
  const RegisteredModel& model = *parts_.model.model();
  OpeningBounds bounds{.rank = worker.rank,
                       .oldest = given.version,
                       .newest = parts_.model.version()};
  if (!model.plan.own_data) bounds.samples = given.range.size();
  bounds.rates = static_cast<size_t>(RateGroups(model.layout));
  bounds.needs_rates = model.plan.rates_by_workers;
  COHORT_RETURN_IF_ERROR(CheckOpening(opening, bounds));
  const CoordinatorOptions& options = parts_.settings.options();
  if (!opening.learning_rates.empty() && !model.plan.rates_by_workers) {
    COHORT_RETURN_IF_ERROR(CheckRatesAreTheWorkers(options, model.plan));
  }
  if (!opening.numbers.empty()) {
    COHORT_RETURN_IF_ERROR(
        CheckNumbersAreTheWorkers(options, model.plan, opening.numbers));
    COHORT_RETURN_IF_ERROR(CheckGroupNumbers(opening.numbers, options.optimizer,
                                             RateGroups(model.layout)));
  }
  COHORT_ASSIGN_OR_RETURN(const bool takes,
                          TakesUpdate(worker.rank, key, opening));
  if (!takes) return absl::OkStatus();
  worker.takes_statistics = opening.takes_statistics;
  const ArrivedPush::Arrival arrival = EnterOpening(worker, key, opening);
  CountArrival(worker, arrival, parts_.ledger, turn);
  if (arrival != ArrivedPush::Arrival::kNew) return absl::OkStatus();
  if (ReservesPushes()) {
    parts_.flow.budget().Reserve(worker.rank, PushBytes(model.layout));
  }
  Opened(turn);
  return absl::OkStatus();
}

absl::StatusOr<Admission> StepDriver::Gradient(Worker& worker,
                                               const PushKey& key,
                                               const GradientArrival& gradient,
                                               Turn& turn) {
  const ArrivedPush& push = *PushOf(worker.rank);
  if (key.update < update()) {
    NoteBehind(worker.rank);
    TakeGradient(worker, key, gradient, /*fresh=*/false, turn);
    return Admission::kTaken;
  }
  COHORT_RETURN_IF_ERROR(CheckOpened(push, key, gradient));
  if (Discards()) {
    GradientArrival nothing = gradient;
    nothing.bytes = 0;
    const bool fresh =
        EnterGradient(worker.rank, nothing) == ArrivedPush::Arrival::kNew;
    TakeGradient(worker, key, gradient, /*fresh=*/false, turn);
    TookGradient(worker, gradient.partition, fresh, turn);
    return Admission::kTaken;
  }
  // A partition that has come before takes no room.
  if (!push.Has(gradient.partition)) {
    if (!MayTake(worker.rank, gradient.bytes)) {
      parts_.flow.Pause(worker.rank, gradient.bytes, turn.now);
      return Admission::kPaused;
    }
    parts_.flow.Forget(worker.rank);
    parts_.flow.Charge(worker.rank, gradient.bytes);
  }
  const ArrivedPush::Arrival arrival = EnterGradient(worker.rank, gradient);
  const bool fresh = arrival == ArrivedPush::Arrival::kNew;
  TakeGradient(worker, push.key(), gradient, /*fresh=*/fresh, turn);
  CountArrival(worker, arrival, parts_.ledger, turn);
  TookGradient(worker, gradient.partition, fresh, turn);
  return Admission::kTaken;
}

void StepDriver::ResumePaused(Turn& turn) {
  if (!parts_.flow.AnyPaused()) return;
  parts_.flow.Resume(
      [this](Rank rank, int64_t bytes) { return MayTake(rank, bytes); }, turn);
}

std::vector<Rank> StepDriver::Candidates() const {
  const bool waits = parts_.settings.waits_for_lost();
  std::vector<Rank> candidates;
  for (const Worker& worker : parts_.ranks.all()) {
    // Under `wait` a vacant rank stays a member: its replacement will compute
    // its share. Otherwise a broken stream is no loss yet: if it becomes one,
    // the attempt ends.
    const bool takes_part = waits ? worker.keeps_share()
                                  : worker.state != Worker::State::kVacant &&
                                        worker.registered &&
                                        !worker.leaves_because.has_value();
    if (takes_part) candidates.push_back(worker.rank);
  }
  return candidates;
}

std::vector<int64_t> StepDriver::BatchSizesOf(
    const std::vector<Rank>& ranks) const {
  std::vector<int64_t> sizes;
  for (Rank rank : ranks) sizes.push_back(parts_.ranks[rank].batch_size);
  return sizes;
}

}  // namespace cohort
