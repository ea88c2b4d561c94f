#include "worker/train/step_runner.h"

#include <torch/torch.h>

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/permutation.h"
#include "common/status_macros.h"
#include "worker/batch_norm/local_moments.h"
#include "worker/batch_norm/scope.h"
#include "worker/batch_norm/step_interrupted.h"
#include "worker/device/out_of_memory.h"
#include "worker/device/precision.h"
#include "worker/train/exception_text.h"
#include "worker/train/scoring.h"

namespace cohort {
namespace {

// The settings of the layers at each call. `calls` has one entry for each part
// and layer.
std::vector<LayerChanges> ChangesOf(const std::vector<int32_t>& calls,
                                    absl::Span<const BatchNormSpec> layers) {
  std::vector<LayerChanges> changes;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const BatchNormSpec& spec = layers[layer];
    LayerChanges one{.layer = static_cast<int32_t>(layer)};
    for (size_t i = layer; i < calls.size(); i += layers.size()) {
      const auto part = static_cast<int32_t>(i / layers.size());
      for (int32_t call = 0; call < calls[i]; ++call) {
        one.calls.push_back(
            {.part = part,
             .call = call,
             .momentum = spec.track_statistics ? spec.momentum : 0,
             .epsilon = spec.epsilon,
             .moves = spec.track_statistics,
             .counts = spec.track_statistics});
      }
    }
    if (!one.calls.empty()) changes.push_back(std::move(one));
  }
  return changes;
}

// The samples of a part go by their numbers in the epoch. So a part of the step
// has the same ones, and batch norm the same result, however the step is
// divided among the workers.
SampleStride PartOf(const IndexRange& range, int64_t part, int64_t parts) {
  return {.begin = (part + parts - range.begin % parts) % parts,
          .stride = parts};
}

}  // namespace

StepRunner::StepRunner(WorkerSession& session, const Dataset& dataset,
                       const TrainerOptions& options, Parts parts)
    : dataset_(dataset),
      options_(options),
      session_(session),
      parts_(std::move(parts)),
      hooks_(parts_.weights.parameters(), session) {}

absl::Status StepRunner::Run(const Assignment& assignment) {
  // LibTorch and the standard library throw; the exceptions stop here.
  try {
    switch (assignment.kind) {
      case AssignmentKind::kEvaluate:
        return Evaluate(assignment);
      case AssignmentKind::kCollectMoments:
        return CollectMoments(assignment);
      default:
        return assignment.local_steps.empty() ? Train(assignment)
                                              : TrainLocally(assignment);
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

absl::Status StepRunner::Train(const Assignment& assignment) {
  COHORT_RETURN_IF_ERROR(ReadWeights(assignment));
  PushOpening opening;
  COHORT_ASSIGN_OR_RETURN(const Batch batch,
                          ReadTrainingSamples(assignment, opening));
  parts_.weights.ClearGradients();
  parts_.model->train();
  SeedStep();
  StepContext context{
      .rendezvous = assignment.global_normalization ? &session_ : nullptr,
      .backend = options_.backend,
      .compute = options_.compute,
      .reached = &reached_};
  StepSums sums(options_.compute);
  reached_ = {};
  batch_text_ = TypeAndShapeText(at::kFloat, batch.images.sizes());
  {
    const BatchNormScope scope(parts_.binding, &context);
    // Parts of a short range may be empty. They are computed nevertheless, so
    // that no member waits for a call of this one.
    const int64_t parts = options_.accumulate * assignment.batches;
    for (int64_t part = 0; part < parts; ++part) {
      context.part = static_cast<int32_t>(part);
      const Part which{
          .batch = batch.Part(PartOf(assignment.range, part, parts)),
          .opening = part == 0 ? &opening : nullptr,
          .last = part + 1 == parts};
      COHORT_RETURN_IF_ERROR(TrainPart(which, sums));
    }
  }
  COHORT_RETURN_IF_ERROR(context.status);
  // Before the sums, which a device may still have to compute.
  COHORT_RETURN_IF_ERROR(session_.SendRest());
  PushClosing closing;
  COHORT_RETURN_IF_ERROR(sums.AddTo(closing));
  closing.batch_norm_calls = context.calls;
  closing.moments = std::move(context.moments);
  closing.changes =
      ChangesOf(closing.batch_norm_calls, parts_.binding.layers());
  return session_.Close(std::move(closing)).status();
}

void StepRunner::SeedStep() const {
  // Dropout draws from the process-wide generator, so a repeated step must find
  // it in the same state.
  torch::manual_seed(MixSeed(parts_.seed,
                             static_cast<uint64_t>(session_.version()->value()),
                             static_cast<uint64_t>(parts_.rank.value())));
}

absl::Status StepRunner::TrainLocally(const Assignment& assignment) {
  COHORT_RETURN_IF_ERROR(ReadWeights(assignment));
  parts_.weights.ClearGradients();
  parts_.model->train();
  SeedStep();
  StepContext context{.backend = options_.backend,
                      .compute = options_.compute,
                      .reached = &reached_};
  StepSums sums(options_.compute);
  reached_ = {};
  hooks_.set_sending(false);
  PushOpening opening;
  LocalSteps steps(parts_.weights, options_.local_optimizer,
                   assignment.local_rate_factor);
  {
    const BatchNormScope scope(parts_.binding, &context);
    for (const IndexRange& range : assignment.local_steps) {
      Assignment one = assignment;
      one.range = range;
      COHORT_RETURN_IF_ERROR(LocalStep(one, context, steps, sums, opening));
    }
  }
  COHORT_RETURN_IF_ERROR(context.status);
  const auto samples = static_cast<double>(opening.samples);
  steps.Finish(samples / session_.loss_reference());
  opening.gradient_weight = opening.loss_weight == 0 ? 0 : samples;
  COHORT_RETURN_IF_ERROR(session_.Open(opening));
  COHORT_RETURN_IF_ERROR(session_.SendRest());
  PushClosing closing;
  COHORT_RETURN_IF_ERROR(sums.AddTo(closing));
  closing.batch_norm_calls = context.calls;
  closing.moments =
      CombineLocalSteps(context.moments, context.calls, parts_.binding.layers(),
                        static_cast<int64_t>(assignment.members.size()));
  return session_.Close(std::move(closing)).status();
}

absl::Status StepRunner::LocalStep(const Assignment& assignment,
                                   StepContext& context, LocalSteps& steps,
                                   StepSums& sums, PushOpening& opening) {
  const int64_t parts = options_.accumulate * assignment.batches;
  const auto first = context.part;
  context.part += static_cast<int32_t>(parts);
  if (assignment.range.empty()) return absl::OkStatus();
  PushOpening own;
  COHORT_ASSIGN_OR_RETURN(const Batch batch,
                          ReadTrainingSamples(assignment, own));
  opening.samples += own.samples;
  opening.loss_weight += own.loss_weight;
  batch_text_ = TypeAndShapeText(at::kFloat, batch.images.sizes());
  for (int64_t part = 0; part < parts; ++part) {
    const Batch share = batch.Part(PartOf(assignment.range, part, parts));
    if (share.images.size(0) == 0) continue;
    context.part = first + static_cast<int32_t>(part);
    COHORT_ASSIGN_OR_RETURN(const Losses losses, Forward(share));
    if (own.loss_weight > 0) {
      const StepPhases::Scope backward(session_.phases(), StepPhase::kBackward);
      (losses.objective / own.loss_weight).backward();
    }
    COHORT_RETURN_IF_ERROR(sums.Add(losses.loss_sum, losses.logits, share));
  }
  context.part = first + static_cast<int32_t>(parts);
  // Without a valid label there is nothing to learn from.
  if (own.loss_weight > 0) steps.Step();
  return absl::OkStatus();
}

absl::Status StepRunner::TrainPart(const Part& part, StepSums& sums) {
  const Batch& batch = part.batch;
  COHORT_ASSIGN_OR_RETURN(const Losses losses, Forward(batch));
  if (part.opening != nullptr) {
    COHORT_RETURN_IF_ERROR(session_.Open(*part.opening));
  }
  hooks_.set_sending(part.last);
  {
    const StepPhases::Scope backward(session_.phases(), StepPhase::kBackward);
    (losses.objective / session_.loss_reference()).backward();
  }
  // After the backward pass, which overlaps with sending gradients.
  const StepPhases::Scope forward(session_.phases(), StepPhase::kForward);
  return sums.Add(losses.loss_sum, losses.logits, batch);
}

absl::StatusOr<StepRunner::Losses> StepRunner::Forward(const Batch& batch) {
  const StepPhases::Scope forward(session_.phases(), StepPhase::kForward);
  const PrecisionScope precision(options_.compute.torch.type(),
                                 options_.compute.precision);
  const ModelOutput output = parts_.model->forward(batch.images);
  // Reports the main head's loss, as in evaluation.
  COHORT_ASSIGN_OR_RETURN(const at::Tensor loss_sum,
                          parts_.loss.Sum(output.logits, batch.labels));
  at::Tensor objective = loss_sum;
  for (const AuxiliaryOutput& head : output.auxiliary) {
    COHORT_ASSIGN_OR_RETURN(const at::Tensor auxiliary,
                            parts_.loss.Sum(head.logits, batch.labels));
    objective = objective + head.weight * auxiliary;
  }
  return Losses{
      .logits = output.logits, .loss_sum = loss_sum, .objective = objective};
}

absl::StatusOr<Batch> StepRunner::ReadTrainingSamples(
    const Assignment& assignment, PushOpening& opening) {
  const StepPhases::Scope data(session_.phases(), StepPhase::kData);
  COHORT_ASSIGN_OR_RETURN(Batch batch, parts_.samples->Read(assignment));
  COHORT_RETURN_IF_ERROR(parts_.samples->PrepareNext(assignment));
  opening.samples = batch.images.size(0);
  COHORT_ASSIGN_OR_RETURN(opening.loss_weight,
                          parts_.loss.WeightOf(batch.host_labels));
  return batch;
}

// A training step up to the gradients. The seed depends on the batch and not on
// the rank, so that every worker draws the same numbers.
absl::Status StepRunner::CollectMoments(const Assignment& assignment) {
  COHORT_RETURN_IF_ERROR(ReadWeights(assignment));
  COHORT_ASSIGN_OR_RETURN(const Batch batch, parts_.samples->Read(assignment));
  parts_.model->train();
  torch::manual_seed(MixSeed(parts_.seed,
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
    const BatchNormScope scope(parts_.binding, &context);
    parts_.model->forward(batch.images);
  }
  COHORT_RETURN_IF_ERROR(context.status);
  return session_.ReportMoments(context.moments);
}

absl::Status StepRunner::Evaluate(const Assignment& assignment) {
  COHORT_RETURN_IF_ERROR(ReadWeights(assignment));
  COHORT_RETURN_IF_ERROR(LoadStatistics(assignment));
  COHORT_ASSIGN_OR_RETURN(const std::vector<int64_t> indices,
                          parts_.samples->IndicesOf(assignment));
  ScoreRequest request{.split = assignment.split,
                       .indices = indices,
                       .batch_size = options_.evaluation_batch_size,
                       .compute = options_.compute,
                       .batches = parts_.samples->batches()};
  reached_ = {};
  batch_text_ = absl::StrCat(request.batch_size, " images in evaluation");
  if (NormalisesByBatch(assignment)) {
    request.batch_size = NormalisedTogether(assignment.global_normalization);
    request.by_batch = &parts_.binding;
    request.backend = options_.backend;
  }
  COHORT_ASSIGN_OR_RETURN(
      const EvaluationSums sums,
      ScoreSamples(*parts_.model, dataset_, parts_.loss, request));
  return session_.ReportEvaluation(sums);
}

int64_t StepRunner::NormalisedTogether(bool global) const {
  const int64_t own =
      std::max<int64_t>(options_.batch_size / options_.accumulate, 1);
  return global ? own * parts_.workers : own;
}

absl::Status StepRunner::ReadWeights(const Assignment& assignment) {
  COHORT_RETURN_IF_ERROR(ReadFrozenStatistics());
  return session_.ReadWeights(assignment).status();
}

absl::Status StepRunner::ReadFrozenStatistics() {
  // Frozen statistics never change, so those of any version will do.
  if (frozen_statistics_read_ || !parts_.binding.HasFrozen()) {
    return absl::OkStatus();
  }
  COHORT_ASSIGN_OR_RETURN(const PulledVersion pulled,
                          session_.Read({.statistics = true}));
  COHORT_RETURN_IF_ERROR(parts_.binding.LoadStatistics(pulled.statistics));
  frozen_statistics_read_ = true;
  return absl::OkStatus();
}

absl::Status StepRunner::LoadStatistics(const Assignment& assignment) {
  if (NormalisesByBatch(assignment)) return ReadFrozenStatistics();
  COHORT_ASSIGN_OR_RETURN(
      const PulledVersion pulled,
      session_.Read({.version = assignment.version,
                     .statistics = true,
                     .statistics_kind = assignment.statistics}));
  return parts_.binding.LoadStatistics(pulled.statistics);
}

absl::Status StepRunner::NoMemory(const std::exception& e) {
  std::string what =
      reached_.layer.empty()
          ? "activations before the first batch-norm layer"
          : absl::StrCat("activations at or after ", reached_.layer, " in the ",
                         reached_.phase == ReducePhase::kForward ? "forward"
                                                                 : "backward",
                         " pass, where its input is ",
                         TypeAndShapeText(reached_.type, reached_.shape));
  return OutOfMemory(options_.compute,
                     absl::StrCat(what, ", with a batch of ", batch_text_), e);
}

}  // namespace cohort
