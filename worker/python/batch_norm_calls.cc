#include "worker/python/batch_norm_calls.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/batch_norm/local_moments.h"

namespace cohort {
namespace {

double RelativeDifference(double a, double b, double scale) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  return std::abs(a - b) / scale;
}

// The largest over the channels.
double Distance(const Moments& a, const Moments& b) {
  const auto count = static_cast<double>(std::max<int64_t>(a.count, 1));
  double largest = 0;
  for (size_t c = 0; c < a.first.size(); ++c) {
    const double deviation = std::sqrt(a.second[c] / count);
    for (const double difference :
         {RelativeDifference(a.first[c], b.first[c],
                             std::abs(a.first[c]) + deviation),
          RelativeDifference(a.second[c], b.second[c], a.second[c])}) {
      if (!(difference <= largest)) largest = difference;
    }
  }
  return largest;
}

}  // namespace

BatchNormCalls::BatchNormCalls(Rendezvous& rendezvous,
                               const kernels::Backend& backend,
                               std::vector<BatchNormSpec> layers)
    : rendezvous_(rendezvous),
      backend_(backend),
      layers_(std::move(layers)),
      buffers_(layers_),
      counts_(layers_.size()),
      made_(layers_.size() + 1) {}

void BatchNormCalls::Begin(const Assignment& assignment) {
  meets_ = assignment.kind == AssignmentKind::kTrain &&
           assignment.global_normalization;
  local_members_ = assignment.local_steps.empty()
                       ? 0
                       : static_cast<int64_t>(assignment.members.size());
  part_ = 0;
  numbers_.clear();
  counts_.assign(layers_.size(), 0);
  made_.assign(layers_.size() + 1, {});
  kept_.clear();
  buffers_.Begin(assignment.moves_statistics);
}

void BatchNormCalls::BeginPart() {
  made_.assign(layers_.size() + 1, {});
  if (!meets_ && local_members_ == 0) return;
  ++part_;
  if (meets_) numbers_.clear();
  counts_.resize(counts_.size() + layers_.size());
}

std::vector<int32_t> BatchNormCalls::Counts() const { return counts_; }

std::vector<CallMoments> BatchNormCalls::TakeMoments() {
  std::vector<CallMoments> moments = std::exchange(kept_, {});
  std::sort(moments.begin(), moments.end(),
            [](const CallMoments& a, const CallMoments& b) {
              return std::tie(a.layer, a.call) < std::tie(b.layer, b.call);
            });
  if (local_members_ == 0) return moments;
  return CombineLocalSteps(moments, counts_, layers_, local_members_);
}

absl::Status BatchNormCalls::SettleLocalSteps(
    std::vector<LayerChanges>& changes) const {
  if (local_members_ == 0) return absl::OkStatus();
  for (const LayerChanges& layer : changes) {
    const BatchNormSpec& spec = layers_[static_cast<size_t>(layer.layer)];
    const bool as_registered =
        std::all_of(layer.calls.begin(), layer.calls.end(),
                    [&spec](const TrainingCall& call) {
                      return call.moves == spec.track_statistics &&
                             (!call.moves || call.momentum == spec.momentum);
                    });
    // Reads come before all training calls, or were refused.
    if (as_registered && layer.writes.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        spec.name, ": ",
        as_registered ? "its moving statistics were written"
                      : "its momentum or track_running_stats was changed",
        " within local steps, which move the statistics once, at their end; "
        "leave them as they were at cohort.join()"));
  }
  changes.clear();
  return absl::OkStatus();
}

std::vector<Moments> BatchNormCalls::Exchange(
    absl::Span<const Contribution> local) {
  if (meets_) {
    absl::StatusOr<std::vector<Moments>> all = rendezvous_.Reduce(local);
    if (all.ok()) return *std::move(all);
  }
  std::vector<Moments> own;
  for (const Contribution& call : local) own.push_back(call.moments);
  return own;
}

CallPlace BatchNormCalls::PlaceOf(const CallArgs& call) {
  // Where members do not meet, a name has no effect.
  const std::string site = meets_ || call.layer < 0 ? call.site : "";
  if (call.layer >= 0) {
    ++counts_[static_cast<size_t>(part_) * layers_.size() +
              static_cast<size_t>(call.layer)];
  }
  return {.part = part_,
          .layer = call.layer,
          .site = site,
          .call = numbers_[{.layer = call.layer, .name = site}]++};
}

std::vector<BatchNormCalls::SharedCall> BatchNormCalls::Forward(
    absl::Span<const ForwardArgs> calls) {
  std::vector<LocalCall> local;
  for (const ForwardArgs& call : calls) {
    local.push_back({.call = call.call, .moments = MomentsOf(call)});
  }
  std::vector<SharedCall> all = Meet(std::move(local));
  for (size_t i = 0; i < calls.size(); ++i) Normalize(calls[i], *all[i]);
  return all;
}

std::vector<BatchNormCalls::SharedCall> BatchNormCalls::Meet(
    std::vector<LocalCall> calls) {
  std::vector<Contribution> local;
  for (LocalCall& call : calls) {
    local.push_back({.place = PlaceOf(call.call),
                     .moments = std::move(call.moments),
                     .extents = call.call.extents});
  }
  std::vector<Moments> all = Exchange(local);
  std::vector<SharedCall> result;
  for (size_t i = 0; i < calls.size(); ++i) {
    const CallArgs& call = calls[i].call;
    Moments& by = all[i];
    if (!meets_ && call.layer >= 0) {
      kept_.push_back({.layer = call.layer,
                       .call = local[i].place.call,
                       .moments = local[i].moments});
    }
    buffers_.Move({.place = local[i].place,
                   .epsilon = call.epsilon,
                   .update = call.update,
                   .all = &by});
    auto saved = std::make_shared<Saved>();
    saved->place = std::move(local[i].place);
    saved->local = std::move(local[i].moments);
    saved->by = StatisticsOf(std::move(by), call.epsilon);
    const size_t at =
        call.layer < 0 ? layers_.size() : static_cast<size_t>(call.layer);
    made_[at].push_back(saved);
    result.push_back(std::move(saved));
  }
  return result;
}

absl::StatusOr<BatchNormCalls::SharedCall> BatchNormCalls::Repeat(
    const ForwardArgs& call) {
  absl::StatusOr<SharedCall> made = Recall(call.call.layer, MomentsOf(call), 0);
  if (made.ok()) Normalize(call, **made);
  return made;
}

absl::StatusOr<BatchNormCalls::SharedCall> BatchNormCalls::Recall(
    int32_t layer, const Moments& local, double tolerance) const {
  const size_t index = layer < 0 ? layers_.size() : static_cast<size_t>(layer);
  const SharedCall* nearest = nullptr;
  double least = tolerance;
  for (const SharedCall& made : made_[index]) {
    if (made->local.count != local.count ||
        made->local.first.size() != local.first.size()) {
      continue;
    }
    const double distance = Distance(made->local, local);
    if (!(distance <= least)) continue;
    // Among equal calls, the last of those recomputed least often: the backward
    // pass visits them in reverse.
    if (nearest != nullptr && distance == least &&
        made->repetitions > (*nearest)->repetitions) {
      continue;
    }
    nearest = &made;
    least = distance;
  }
  if (nearest != nullptr) {
    ++(*nearest)->repetitions;
    return *nearest;
  }
  return absl::FailedPreconditionError(absl::StrCat(
      layer < 0 ? "a batch norm that is no layer of the model"
                : layers_[index].name,
      ": was called during the backward pass with an input that it did not "
      "have in the forward pass; activation checkpointing must compute the "
      "same values again (preserve_rng_state=True)"));
}

BatchNormCalls::Meeting BatchNormCalls::Sum(const std::string& site,
                                            std::vector<double> own) {
  // A forward call with one value a member, and a channel for each number.
  const size_t numbers = own.size();
  Contribution local{.place = PlaceOf({.layer = -1, .site = site}),
                     .moments = {.count = 1,
                                 .first = std::move(own),
                                 .second = std::vector<double>(numbers)}};
  const std::vector<Moments> all = Exchange({&local, 1});
  Meeting met{.members = all[0].count};
  for (size_t i = 0; i < numbers; ++i) {
    met.sums.push_back(all[0].first[i] * static_cast<double>(met.members));
    met.spreads.push_back(all[0].second[i]);
  }
  return met;
}

Moments BatchNormCalls::MomentsOf(const ForwardArgs& call) const {
  const kernels::NormalizeArgs& tensors = call.tensors;
  return LocalMoments(
      backend_, {.shape = tensors.shape, .type = tensors.type, .x = tensors.x});
}

void BatchNormCalls::Normalize(const ForwardArgs& call,
                               const Saved& saved) const {
  kernels::NormalizeArgs tensors = call.tensors;
  tensors.mean = saved.by.mean.data();
  tensors.invstd = saved.by.invstd.data();
  backend_.Normalize(tensors);
}

void BatchNormCalls::Backward(absl::Span<const BackwardArgs> calls) {
  std::vector<LocalSums> met;
  for (const BackwardArgs& call : calls) {
    const kernels::BackwardElementwiseArgs& tensors = call.tensors;
    const BatchStatistics& by = call.saved->by;
    Moments local =
        BackwardSums(backend_, {.shape = tensors.shape,
                                .type = tensors.type,
                                .x = tensors.x,
                                .dy = tensors.dy,
                                .mean = by.mean.data(),
                                .relu = tensors.relu,
                                .invstd = by.invstd.data(),
                                .parameter_type = tensors.parameter_type,
                                .gamma = tensors.gamma,
                                .beta = tensors.beta});
    const std::vector<double> gamma = ScaleGradient(local, by);
    std::copy(local.first.begin(), local.first.end(),
              std::copy(gamma.begin(), gamma.end(), call.affine));
    if (!call.needs_dx) continue;
    met.push_back(
        {.saved = call.saved, .path = call.path, .sums = std::move(local)});
  }
  const std::vector<Moments> all = MeetBackward(std::move(met));
  auto next = all.begin();
  for (const BackwardArgs& call : calls) {
    if (call.needs_dx) InputGradient(call, *next++);
  }
}

std::vector<Moments> BatchNormCalls::MeetBackward(
    std::vector<LocalSums> calls) {
  if (calls.empty()) return {};
  std::vector<Contribution> sent;
  for (LocalSums& call : calls) {
    Contribution& one = sent.emplace_back(Contribution{
        .place = call.saved->place, .moments = std::move(call.sums)});
    one.place.phase = ReducePhase::kBackward;
    one.place.path = std::move(call.path);
  }
  return Exchange(sent);
}

void BatchNormCalls::InputGradient(const BackwardArgs& call,
                                   const Moments& all) const {
  kernels::BackwardElementwiseArgs tensors = call.tensors;
  const BatchStatistics& by = call.saved->by;
  tensors.mean = by.mean.data();
  tensors.invstd = by.invstd.data();
  tensors.sum_dy = all.first.data();
  tensors.sum_dy_xmu = all.second.data();
  tensors.total_count = by.count;
  backend_.BackwardElementwise(tensors);
}

}  // namespace cohort
