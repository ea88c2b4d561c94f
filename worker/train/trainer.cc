#include "worker/train/trainer.h"

#include <exception>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/batch_norm/binding.h"
#include "worker/device/out_of_memory.h"
#include "worker/train/assignment_samples.h"
#include "worker/train/exception_text.h"
#include "worker/train/model_weights.h"
#include "worker/train/scoring.h"

namespace cohort {

Trainer::Trainer(Client& client, const Dataset& dataset,
                 const TrainerOptions& options)
    : dataset_(dataset),
      options_(options),
      session_(client,
               {.observer = options.observer, .timeline = options.timeline}) {}

Trainer::~Trainer() = default;

absl::Status Trainer::Run() {
  absl::Status status = PrepareOrTell();
  if (status.ok()) status = Loop();
  session_.Leave(
      {.reason = status.ok() ? "done" : std::string(status.message())});
  if (!absl::IsCancelled(status)) return status;
  // Cancelled without a stop request: the server no longer needs this rank.
  left_early_ = Stopped();
  return absl::OkStatus();
}

absl::Status Trainer::PrepareOrTell() {
  // LibTorch throws; the exceptions stop here.
  try {
    return Prepare();
  } catch (const std::exception& e) {
    if (IsOutOfMemory(e)) {
      return OutOfMemory(options_.compute, "creating the model", e);
    }
    return absl::InternalError(absl::StrCat("creating the model: ", TextOf(e)));
  }
}

absl::StatusOr<std::shared_ptr<Model>> Trainer::MakeModelOnDevice(
    uint64_t seed, const CrossEntropy& loss) {
  COHORT_ASSIGN_OR_RETURN(std::shared_ptr<Model> model,
                          options_.make_model(seed));
  COHORT_RETURN_IF_ERROR(MoveTo(options_.compute, *model));
  COHORT_RETURN_IF_ERROR(CheckFits(*model, dataset_, loss, options_.compute));
  return model;
}

absl::Status Trainer::Prepare() {
  COHORT_RETURN_IF_ERROR(CheckFits(options_.order, dataset_));
  COHORT_ASSIGN_OR_RETURN(
      CrossEntropy loss, CrossEntropy::Make(options_.loss, dataset_.classes()));
  loss.MoveTo(options_.compute.torch);
  COHORT_ASSIGN_OR_RETURN(const Membership membership, session_.Join());
  COHORT_ASSIGN_OR_RETURN(DataOrder order,
                          DataOrder::Make(dataset_, options_.order,
                                          {.seed = membership.seed,
                                           .rank = membership.rank,
                                           .workers = membership.workers,
                                           .batch_size = options_.batch_size}));
  COHORT_ASSIGN_OR_RETURN(std::shared_ptr<Model> model,
                          MakeModelOnDevice(membership.seed, loss));
  BindingOptions batch_norm = options_.batch_norm;
  batch_norm.device = options_.compute.torch;
  COHORT_ASSIGN_OR_RETURN(BatchNormBinding binding,
                          BatchNormBinding::Make(*model, batch_norm));
  COHORT_ASSIGN_OR_RETURN(
      ModelWeights weights,
      ModelWeights::Make(*model, binding, options_.compute.torch));
  COHORT_ASSIGN_OR_RETURN(memory_, weights.MakeMemory(options_.compute));
  COHORT_RETURN_IF_ERROR(
      ApplyGroups(options_.groups, weights.mutable_layout()));
  COHORT_RETURN_IF_ERROR(session_.Register(
      weights.layout(),
      {.dataset = PlanName(options_.order, dataset_),
       .dataset_digest = dataset_.digest(),
       .train_samples = order.epoch_size(),
       .test_samples = order.test_size(),
       .loss_reference = static_cast<double>(options_.batch_size *
                                             dataset_.labels_per_sample()),
       .loss = loss.text(),
       .local_optimizer = LocalOptimizerText(options_.local_optimizer)},
      weights.Values(), binding.Statistics(), *memory_));
  auto samples = std::make_unique<AssignmentSamples>(
      dataset_, options_.compute,
      AssignmentSamples::Options{.run_seed = membership.seed,
                                 .loader_threads = options_.loader_threads},
      std::move(order));
  COHORT_RETURN_IF_ERROR(samples->HoldOnDevice());
  steps_ = std::make_unique<StepRunner>(
      session_, dataset_, options_,
      StepRunner::Parts{.model = std::move(model),
                        .loss = std::move(loss),
                        .binding = std::move(binding),
                        .weights = std::move(weights),
                        .samples = std::move(samples),
                        .seed = membership.seed,
                        .rank = membership.rank,
                        .workers = membership.workers});
  return absl::OkStatus();
}

absl::Status Trainer::Loop() {
  for (;;) {
    COHORT_ASSIGN_OR_RETURN(const Assignment next, session_.NextAssignment());
    if (next.kind == AssignmentKind::kFinished) {
      left_early_ = next.unfinished;
      // One that a restarted server continues is no error of this worker.
      if (next.failed && !next.unfinished) {
        return absl::InternalError(
            absl::StrCat("the run failed: ", next.reason));
      }
      return absl::OkStatus();
    }
    if (!EnterStep()) return absl::CancelledError("stop requested");
    session_.Begin(next);
    const absl::Status status = steps_->Run(next);
    session_.End(status);
    LeaveStep();
    if (!WorkerSession::IsVoid(status)) COHORT_RETURN_IF_ERROR(status);
  }
}

void Trainer::RequestStop() {
  MutexLock lock(mu_);
  stop_ = true;
  if (!in_step_) session_.RequestStop();
}

bool Trainer::EnterStep() {
  MutexLock lock(mu_);
  in_step_ = !stop_;
  return in_step_;
}

bool Trainer::Stopped() {
  MutexLock lock(mu_);
  return stop_;
}

void Trainer::LeaveStep() {
  MutexLock lock(mu_);
  in_step_ = false;
  if (stop_) session_.RequestStop();
}

}  // namespace cohort
