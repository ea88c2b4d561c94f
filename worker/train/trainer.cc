#include "worker/train/trainer.h"

#include <torch/torch.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/permutation.h"
#include "common/status_macros.h"
#include "worker/batch_norm/binding.h"
#include "worker/batch_norm/scope.h"
#include "worker/batch_norm/step_interrupted.h"
#include "worker/device/out_of_memory.h"
#include "worker/device/precision.h"
#include "worker/train/exception_text.h"
#include "worker/train/gradient_sender.h"
#include "worker/train/model_weights.h"
#include "worker/train/scoring.h"
#include "worker/train/weight_transfer.h"

namespace cohort {
namespace {

// The rendezvous of one assignment, over the client.
class ClientRendezvous final : public Rendezvous {
 public:
  ClientRendezvous(Client& client, const Assignment& assignment)
      : client_(client), assignment_(assignment) {}

  absl::StatusOr<std::vector<Moments>> Reduce(
      ReducePhase phase, absl::Span<const CallMoments> local) override {
    return client_.Reduce({.step = assignment_.version,
                           .attempt = assignment_.attempt,
                           .phase = phase},
                          local);
  }

 private:
  Client& client_;
  const Assignment& assignment_;
};

TrainerState StateOf(AssignmentKind kind) {
  switch (kind) {
    case AssignmentKind::kEvaluate:
      return TrainerState::kEvaluating;
    case AssignmentKind::kCollectMoments:
      return TrainerState::kCollecting;
    default:
      return TrainerState::kTraining;
  }
}

const char* SpanNameOf(AssignmentKind kind) {
  switch (kind) {
    case AssignmentKind::kEvaluate:
      return "evaluate";
    case AssignmentKind::kCollectMoments:
      return "collect moments";
    default:
      return "step";
  }
}

// An evaluation without moving statistics.
bool NormalisesByBatch(const Assignment& assignment) {
  return assignment.kind == AssignmentKind::kEvaluate &&
         assignment.statistics == kBatchStatistics;
}

// True for errors that void the assignment but not the worker.
bool IsVoid(const absl::Status& status) {
  return absl::IsAborted(status) || absl::IsUnavailable(status) ||
         absl::IsOutOfRange(status);
}

}  // namespace

struct Trainer::State {
  std::shared_ptr<Model> model;
  CrossEntropy loss;
  BatchNormBinding binding;
  ModelWeights weights;
  // Null on the CPU. Refers to the weights, as does the next.
  std::unique_ptr<WeightTransfer> transfer;
  // Made once the weights lie still.
  std::unique_ptr<GradientSender> gradients;
  uint64_t seed = 0;
  Rank rank;
  Incarnation incarnation;
  double loss_reference = 1;
  int32_t workers = 1;
  // Of the weights in the model; absent: not a version of the server's.
  std::optional<Version> version;
  DataOrder order;
  // Null on the CPU.
  std::unique_ptr<DeviceBatches> batches;
  bool frozen_statistics_read = false;
};

Trainer::Trainer(Client& client, const Dataset& dataset,
                 const TrainerOptions& options)
    : dataset_(dataset),
      options_(options),
      phases_(clock_, options.timeline),
      client_(client, phases_),
      reader_(dataset, options.loader_threads) {}

Trainer::~Trainer() = default;

absl::Status Trainer::Run() {
  absl::Status status = PrepareOrTell();
  if (status.ok()) status = Loop();
  client_.Leave(status.ok() ? "done" : std::string(status.message()));
  if (!absl::IsCancelled(status)) return status;
  // Without a stop it was the server that needs this rank no more.
  left_early_ = Stopped();
  return absl::OkStatus();
}

absl::Status Trainer::PrepareOrTell() {
  // LibTorch throws; nothing of it goes further.
  try {
    return Prepare();
  } catch (const std::exception& e) {
    if (IsOutOfMemory(e)) {
      return OutOfMemory(options_.compute, "the model, as it is made", e);
    }
    return absl::InternalError(absl::StrCat("making the model: ", TextOf(e)));
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

absl::Status Trainer::HoldImages() {
  if (options_.compute.accelerator == nullptr) return absl::OkStatus();
  state_->batches = std::make_unique<DeviceBatches>(options_.compute, dataset_);
  return state_->batches->Hold().status();
}

absl::Status Trainer::Prepare() {
  COHORT_RETURN_IF_ERROR(CheckFits(options_.order, dataset_));
  COHORT_ASSIGN_OR_RETURN(
      CrossEntropy loss, CrossEntropy::Make(options_.loss, dataset_.classes()));
  loss.MoveTo(options_.compute.torch);
  COHORT_ASSIGN_OR_RETURN(const Membership membership, client_.Join());
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
  COHORT_ASSIGN_OR_RETURN(
      Registration registration,
      client_.Register(weights.layout(),
                       {.dataset = PlanName(options_.order, dataset_),
                        .dataset_digest = dataset_.digest(),
                        .train_samples = order.epoch_size(),
                        .test_samples = order.test_size(),
                        .loss_reference = static_cast<double>(
                            options_.batch_size * dataset_.labels_per_sample()),
                        .loss = loss.text()},
                       weights.Values(), binding.Statistics()));
  weights.SetPartitions(std::move(registration.partitions));
  state_ = std::make_unique<State>(
      State{.model = std::move(model),
            .loss = std::move(loss),
            .binding = std::move(binding),
            .weights = std::move(weights),
            .transfer = nullptr,
            .gradients = nullptr,
            .seed = membership.seed,
            .rank = membership.rank,
            .incarnation = membership.incarnation,
            .loss_reference = registration.loss_reference,
            .workers = membership.workers,
            .order = std::move(order)});
  if (options_.compute.accelerator != nullptr) {
    COHORT_ASSIGN_OR_RETURN(
        state_->transfer,
        WeightTransfer::Make(options_.compute, state_->weights));
  }
  state_->gradients = std::make_unique<GradientSender>(
      state_->weights, client_, state_->transfer.get(),
      std::move(registration.send_order));
  return HoldImages();
}

absl::Status Trainer::Loop() {
  for (;;) {
    Tell(TrainerState::kWaiting);
    phases_.Begin();
    const absl::StatusOr<Assignment> next = client_.NextAssignment();
    if (IsVoid(next.status())) continue;
    COHORT_RETURN_IF_ERROR(next.status());
    // The server of another life may not know the version in the model, or
    // know another one by its number.
    if (state_->incarnation != client_.incarnation()) {
      state_->incarnation = client_.incarnation();
      state_->version.reset();
    }
    if (next->kind == AssignmentKind::kFinished) {
      left_early_ = next->unfinished;
      return absl::OkStatus();
    }
    if (!EnterStep()) return absl::CancelledError("stop requested");
    const absl::Status status = Execute(*next);
    LeaveStep();
    if (!IsVoid(status)) COHORT_RETURN_IF_ERROR(status);
  }
}

void Trainer::Tell(TrainerState state) {
  if (options_.observer != nullptr) options_.observer->OnState(state);
}

void Trainer::HaveWeights(Version version) {
  state_->version = version;
  if (options_.observer != nullptr) options_.observer->OnWeights(version);
}

absl::Status Trainer::Execute(const Assignment& assignment) {
  const AssignmentKind kind = assignment.kind;
  Tell(StateOf(kind));
  report_.reset();
  const absl::Status status = Compute(assignment);
  StepPhases::Facts facts;
  if (phases_.traced()) {
    facts = {{"sequence", assignment.sequence.value()},
             {"attempt", int64_t{assignment.attempt.value()}},
             {"version", assignment.version.value()},
             {"samples", assignment.range.size()}};
    if (!status.ok()) {
      facts.emplace_back("ended", std::string(status.message()));
    }
    if (report_.has_value()) {
      facts.emplace_back("next_version", report_->version.value());
    }
  }
  const PhaseTimes times = phases_.End(SpanNameOf(kind), std::move(facts));
  if (report_.has_value() && options_.observer != nullptr) {
    report_->phases = times;
    options_.observer->OnStep(*report_);
  }
  return status;
}

absl::Status Trainer::Compute(const Assignment& assignment) {
  // LibTorch and the standard library throw; nothing of theirs goes further.
  try {
    switch (assignment.kind) {
      case AssignmentKind::kEvaluate:
        return Evaluate(assignment);
      case AssignmentKind::kCollectMoments:
        return CollectMoments(assignment);
      default:
        return Train(assignment);
    }
  } catch (const StepInterrupted& interrupted) {
    return interrupted.status();
  } catch (const std::exception& e) {
    if (IsOutOfMemory(e)) return NoMemory(e);
    return absl::InternalError(
        absl::StrCat("assignment ", assignment.sequence.value(), " at version ",
                     assignment.version.value(), ": ", TextOf(e)));
  }
}

absl::Status Trainer::NoMemory(const std::exception& e) {
  std::string what =
      reached_.layer.empty()
          ? "activations before the first batch-norm layer"
          : absl::StrCat("activations at or behind ", reached_.layer,
                         " in the ",
                         reached_.phase == ReducePhase::kForward ? "forward"
                                                                 : "backward",
                         " pass, where it is given ",
                         TypeAndShapeText(reached_.type, reached_.shape));
  return OutOfMemory(options_.compute,
                     absl::StrCat(what, ", with a batch of ", batch_text_), e);
}

absl::Status Trainer::LoadWeights(absl::Span<const ByteRope> weights) {
  return state_->transfer == nullptr ? state_->weights.Load(weights)
                                     : state_->transfer->Load(weights);
}

absl::Status Trainer::ReadFrozenStatistics() {
  // They never move, so those of any version will do.
  if (state_->frozen_statistics_read || !state_->binding.HasFrozen()) {
    return absl::OkStatus();
  }
  COHORT_ASSIGN_OR_RETURN(const PulledVersion pulled,
                          client_.Pull({.statistics = true}));
  COHORT_RETURN_IF_ERROR(state_->binding.LoadStatistics(pulled.statistics));
  state_->frozen_statistics_read = true;
  return absl::OkStatus();
}

absl::Status Trainer::ReadWeights(const Assignment& assignment) {
  COHORT_RETURN_IF_ERROR(ReadFrozenStatistics());
  // All but an asynchronous step needs one exact version; that takes what it
  // was sent, but nothing older than was there when it was handed out.
  const bool exact =
      assignment.kind != AssignmentKind::kTrain || !assignment.members.empty();
  if (state_->version.has_value() &&
      (exact ? *state_->version == assignment.version
             : *state_->version >= assignment.version)) {
    return absl::OkStatus();
  }
  PullWish wish{.weights = true};
  if (exact) wish.version = assignment.version;
  COHORT_ASSIGN_OR_RETURN(const PulledVersion pulled, client_.Pull(wish));
  state_->version.reset();
  COHORT_RETURN_IF_ERROR(LoadWeights(pulled.weights));
  HaveWeights(pulled.version);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> Trainer::IndicesOf(
    const Assignment& assignment) {
  DataOrder& order = state_->order;
  const bool test = assignment.split == DataSplit::kTest;
  const int64_t held = test ? order.test_size() : order.epoch_size();
  if (assignment.range.end > held) {
    return absl::InternalError(
        absl::StrCat("assignment ", assignment.sequence.value(),
                     ": got samples up to ", assignment.range.end,
                     ", want at most ", held, ", all of ", dataset_.name()));
  }
  if (test && NormalisesByBatch(assignment)) {
    return order.MixedTest(assignment.range);
  }
  if (test) return order.Test(assignment.range);
  return assignment.kind == AssignmentKind::kCollectMoments
             ? order.Common(assignment.data_epoch, assignment.range)
             : order.Training(assignment.data_epoch, assignment.range);
}

absl::StatusOr<Batch> Trainer::ReadSamples(const Assignment& assignment) {
  COHORT_ASSIGN_OR_RETURN(const std::vector<int64_t> indices,
                          IndicesOf(assignment));
  const SampleRequest request{
      .indices = indices,
      .augmentation = AugmentationKey{.run_seed = state_->seed,
                                      .data_epoch = assignment.data_epoch}};
  if (state_->batches != nullptr) {
    COHORT_ASSIGN_OR_RETURN(std::optional<Batch> made,
                            state_->batches->Make(request));
    if (made.has_value()) return *std::move(made);
  }
  return MoveBatch(options_.compute, reader_.Read(request));
}

absl::Status Trainer::PrepareNext(const Assignment& assignment) {
  if (state_->batches != nullptr && state_->batches->holds()) {
    return absl::OkStatus();
  }
  const std::optional<IndexRange> range = forecast_.After(
      assignment.data_epoch, assignment.range, state_->order.epoch_size());
  if (!range.has_value()) return absl::OkStatus();
  Assignment next = assignment;
  next.range = *range;
  COHORT_ASSIGN_OR_RETURN(const std::vector<int64_t> indices, IndicesOf(next));
  reader_.Prepare(
      {.indices = indices,
       .augmentation = AugmentationKey{.run_seed = state_->seed,
                                       .data_epoch = next.data_epoch}});
  return absl::OkStatus();
}

absl::StatusOr<Trainer::Losses> Trainer::Forward(const Batch& batch) {
  const StepPhases::Scope forward(phases_, StepPhase::kForward);
  const PrecisionScope precision(options_.compute.torch.type(),
                                 options_.compute.precision);
  const ModelOutput output = state_->model->forward(batch.images);
  // What is reported is the main head's, as in evaluation.
  COHORT_ASSIGN_OR_RETURN(const at::Tensor loss_sum,
                          state_->loss.Sum(output.logits, batch.labels));
  at::Tensor objective = loss_sum;
  for (const AuxiliaryOutput& head : output.auxiliary) {
    COHORT_ASSIGN_OR_RETURN(const at::Tensor auxiliary,
                            state_->loss.Sum(head.logits, batch.labels));
    objective = objective + head.weight * auxiliary;
  }
  return Losses{
      .logits = output.logits, .loss_sum = loss_sum, .objective = objective};
}

absl::Status Trainer::TrainPart(const Part& part, StepSums& sums) {
  const Batch& batch = part.batch;
  COHORT_ASSIGN_OR_RETURN(const Losses losses, Forward(batch));
  if (part.opening != nullptr) {
    COHORT_RETURN_IF_ERROR(client_.OpenPush(*part.opening));
  }
  if (part.last) state_->gradients->SendDuringNextPass();
  {
    const StepPhases::Scope backward(phases_, StepPhase::kBackward);
    (losses.objective / state_->loss_reference).backward();
  }
  // After the backward pass, during which gradients leave.
  const StepPhases::Scope forward(phases_, StepPhase::kForward);
  return sums.Add(losses.loss_sum, losses.logits, batch);
}

absl::StatusOr<Batch> Trainer::ReadTrainingSamples(const Assignment& assignment,
                                                   PushOpening& opening) {
  const StepPhases::Scope data(phases_, StepPhase::kData);
  COHORT_ASSIGN_OR_RETURN(Batch batch, ReadSamples(assignment));
  COHORT_RETURN_IF_ERROR(PrepareNext(assignment));
  opening.samples = batch.images.size(0);
  COHORT_ASSIGN_OR_RETURN(opening.loss_weight,
                          state_->loss.WeightOf(batch.host_labels));
  return batch;
}

absl::Status Trainer::Train(const Assignment& assignment) {
  COHORT_RETURN_IF_ERROR(ReadWeights(assignment));
  PushOpening opening{.version = *state_->version};
  COHORT_ASSIGN_OR_RETURN(const Batch batch,
                          ReadTrainingSamples(assignment, opening));
  const int64_t samples = opening.samples;
  state_->weights.ClearGradients();
  state_->gradients->Begin();
  state_->model->train();
  // Dropout draws from the process-wide generator: a repeated step must find
  // it in the same state.
  torch::manual_seed(MixSeed(state_->seed,
                             static_cast<uint64_t>(state_->version->value()),
                             static_cast<uint64_t>(state_->rank.value())));

  ClientRendezvous rendezvous(client_, assignment);
  StepContext context{
      .rendezvous = assignment.global_normalization ? &rendezvous : nullptr,
      .backend = options_.backend,
      .compute = options_.compute,
      .reached = &reached_};
  StepSums sums(options_.compute);
  reached_ = {};
  batch_text_ = TypeAndShapeText(at::kFloat, batch.images.sizes());
  {
    const BatchNormScope scope(state_->binding, &context);
    // Parts of a short range may be empty and are computed nevertheless: all
    // members must make equally many batch-norm calls.
    for (int64_t part = 0; part < options_.accumulate; ++part) {
      const int64_t begin = samples * part / options_.accumulate;
      const int64_t end = samples * (part + 1) / options_.accumulate;
      const Part which{.batch = batch.Part(begin, end),
                       .opening = part == 0 ? &opening : nullptr,
                       .last = part + 1 == options_.accumulate};
      COHORT_RETURN_IF_ERROR(TrainPart(which, sums));
    }
  }
  COHORT_RETURN_IF_ERROR(context.status);
  COHORT_RETURN_IF_ERROR(state_->gradients->SendRest());
  PushClosing closing;
  COHORT_RETURN_IF_ERROR(sums.AddTo(closing));
  closing.batch_norm_calls = context.calls;
  closing.moments = std::move(context.moments);
  COHORT_ASSIGN_OR_RETURN(const PushResult result, client_.ClosePush(closing));
  report_ = {.version = result.verdict.version,
             .verdict = result.verdict.verdict,
             .samples = samples};
  if (opening.loss_weight > 0) {
    report_->loss = closing.loss_sum / opening.loss_weight;
  }
  return TakeResult(result);
}

absl::Status Trainer::TakeResult(const PushResult& result) {
  const StepPhases::Scope push(phases_, StepPhase::kPush);
  const PushVerdict& verdict = result.verdict;
  if (verdict.verdict == Verdict::kSkipped) {
    HaveWeights(verdict.version);
    return absl::OkStatus();
  }
  state_->version.reset();
  const bool applied = IsApplied(verdict.verdict);
  // A verdict without weights (a repetition was answered) leaves the version
  // unknown, and the next step pulls.
  for (size_t p = 0; p < result.weights.size(); ++p) {
    if (!applied || (state_->weights.partitions()[p].trainable &&
                     result.weights[p].size_bytes() == 0)) {
      return absl::OkStatus();
    }
  }
  if (!applied || result.weights.empty()) return absl::OkStatus();
  COHORT_RETURN_IF_ERROR(LoadWeights(result.weights));
  HaveWeights(verdict.version);
  return absl::OkStatus();
}

// As a training step up to the gradients. Seeded by the batch and not by the
// rank, so that whoever computes it draws the same.
absl::Status Trainer::CollectMoments(const Assignment& assignment) {
  COHORT_RETURN_IF_ERROR(ReadWeights(assignment));
  COHORT_ASSIGN_OR_RETURN(const Batch batch, ReadSamples(assignment));
  state_->model->train();
  torch::manual_seed(MixSeed(state_->seed,
                             static_cast<uint64_t>(assignment.version.value()),
                             static_cast<uint64_t>(assignment.range.begin)));
  reached_ = {};
  batch_text_ = TypeAndShapeText(at::kFloat, batch.images.sizes());
  StepContext context{.backend = options_.backend,
                      .compute = options_.compute,
                      .reached = &reached_};
  {
    const torch::NoGradGuard no_grad;
    const PrecisionScope precision(options_.compute.torch.type(),
                                   options_.compute.precision);
    const BatchNormScope scope(state_->binding, &context);
    state_->model->forward(batch.images);
  }
  COHORT_RETURN_IF_ERROR(context.status);
  return client_.ReportMoments(context.moments);
}

int64_t Trainer::NormalisedTogether(bool global) const {
  const int64_t own =
      std::max<int64_t>(options_.batch_size / options_.accumulate, 1);
  return global ? own * state_->workers : own;
}

absl::Status Trainer::LoadStatistics(const Assignment& assignment) {
  if (NormalisesByBatch(assignment)) return ReadFrozenStatistics();
  COHORT_ASSIGN_OR_RETURN(
      const PulledVersion pulled,
      client_.Pull({.version = assignment.version,
                    .statistics = true,
                    .statistics_kind = assignment.statistics}));
  return state_->binding.LoadStatistics(pulled.statistics);
}

absl::Status Trainer::Evaluate(const Assignment& assignment) {
  COHORT_RETURN_IF_ERROR(ReadWeights(assignment));
  COHORT_RETURN_IF_ERROR(LoadStatistics(assignment));
  COHORT_ASSIGN_OR_RETURN(const std::vector<int64_t> indices,
                          IndicesOf(assignment));
  ScoreRequest request{.split = assignment.split,
                       .indices = indices,
                       .batch_size = options_.evaluation_batch_size,
                       .compute = options_.compute,
                       .batches = state_->batches.get()};
  reached_ = {};
  batch_text_ = absl::StrCat(request.batch_size, " images in evaluation");
  if (NormalisesByBatch(assignment)) {
    request.batch_size = NormalisedTogether(assignment.global_normalization);
    request.by_batch = &state_->binding;
    request.backend = options_.backend;
  }
  COHORT_ASSIGN_OR_RETURN(
      const EvaluationSums sums,
      ScoreSamples(*state_->model, dataset_, state_->loss, request));
  return client_.ReportEvaluation(sums);
}

void Trainer::RequestStop() {
  MutexLock lock(mu_);
  stop_ = true;
  if (!in_step_) client_.RequestStop();
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
  if (stop_) client_.RequestStop();
}

}  // namespace cohort
