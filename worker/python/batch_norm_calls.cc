#include "worker/python/batch_norm_calls.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cohort {

BatchNormCalls::BatchNormCalls(WorkerSession& session,
                               const kernels::Backend& backend,
                               std::vector<std::string> names)
    : session_(session), backend_(backend), names_(std::move(names)) {
  Begin();
}

void BatchNormCalls::Begin() {
  counts_.assign(names_.size(), 0);
  made_.assign(names_.size(), {});
}

std::vector<BatchNormCalls::SharedCall> BatchNormCalls::Forward(
    absl::Span<const ForwardArgs> calls) {
  std::vector<CallMoments> local;
  for (const ForwardArgs& call : calls) {
    local.push_back({.layer = call.layer,
                     .call = counts_[static_cast<size_t>(call.layer)]++,
                     .moments = LocalMoments(call)});
  }
  const std::vector<Moments> all =
      session_.Reduce(ReducePhase::kForward, local);
  std::vector<SharedCall> result;
  for (size_t i = 0; i < calls.size(); ++i) {
    const ForwardArgs& call = calls[i];
    const Moments& by = all[i];
    auto saved = std::make_shared<Saved>();
    saved->layer = call.layer;
    saved->call = local[i].call;
    saved->shape = call.shape;
    saved->type = call.type;
    saved->mean = by.first;
    saved->count = by.count;
    // If no member has samples, there is nothing to normalise; the divisor only
    // keeps 0/0 out of the saved values.
    const auto count = static_cast<double>(std::max<int64_t>(by.count, 1));
    for (const double m2 : by.second) {
      saved->invstd.push_back(1.0 / std::sqrt(m2 / count + call.epsilon));
    }
    saved->local = std::move(local[i].moments);
    Normalize(call, *saved);
    made_[static_cast<size_t>(call.layer)].push_back(saved);
    result.push_back(std::move(saved));
  }
  return result;
}

absl::StatusOr<BatchNormCalls::SharedCall> BatchNormCalls::Repeat(
    const ForwardArgs& call) {
  const Moments local = LocalMoments(call);
  for (const SharedCall& made : made_[static_cast<size_t>(call.layer)]) {
    if (made->local.count != local.count || made->local.first != local.first ||
        made->local.second != local.second) {
      continue;
    }
    Normalize(call, *made);
    return made;
  }
  return absl::FailedPreconditionError(absl::StrCat(
      names_[static_cast<size_t>(call.layer)],
      ": was called during the backward pass with an input that it did not "
      "have in the forward pass; activation checkpointing must compute the "
      "same values again (preserve_rng_state=True)"));
}

Moments BatchNormCalls::LocalMoments(const ForwardArgs& call) const {
  const auto channels = static_cast<size_t>(call.shape.channels);
  Moments local{.count = call.shape.count(),
                .first = std::vector<double>(channels),
                .second = std::vector<double>(channels)};
  if (local.count == 0) return local;
  backend_.Moments({.shape = call.shape,
                    .type = call.type,
                    .x = call.x,
                    .mean = local.first.data(),
                    .m2 = local.second.data()});
  return local;
}

void BatchNormCalls::Normalize(const ForwardArgs& call,
                               const Saved& saved) const {
  if (call.shape.count() == 0) return;
  backend_.Normalize({.shape = call.shape,
                      .type = call.type,
                      .x = call.x,
                      .mean = saved.mean.data(),
                      .invstd = saved.invstd.data(),
                      .parameter_type = call.affine.type,
                      .gamma = call.affine.gamma,
                      .beta = call.affine.beta,
                      .y = call.y});
}

std::vector<BatchNormCalls::AffineGradients> BatchNormCalls::Backward(
    absl::Span<const BackwardArgs> calls) {
  std::vector<Moments> local;
  std::vector<CallMoments> sent;
  for (const BackwardArgs& call : calls) {
    local.push_back(BackwardSums(call));
    if (!call.needs_dx) continue;
    sent.push_back({.layer = call.saved->layer,
                    .call = call.saved->call,
                    .moments = local.back()});
  }
  std::vector<Moments> all;
  if (!sent.empty()) all = session_.Reduce(ReducePhase::kBackward, sent);
  std::vector<AffineGradients> gradients;
  auto next = all.begin();
  for (size_t i = 0; i < calls.size(); ++i) {
    const BackwardArgs& call = calls[i];
    if (call.needs_dx) InputGradient(call, *next++);
    AffineGradients out{.gamma = local[i].second, .beta = local[i].first};
    for (size_t c = 0; c < out.gamma.size(); ++c) {
      out.gamma[c] *= call.saved->invstd[c];
    }
    gradients.push_back(std::move(out));
  }
  return gradients;
}

Moments BatchNormCalls::BackwardSums(const BackwardArgs& call) const {
  const Saved& saved = *call.saved;
  const auto channels = static_cast<size_t>(saved.shape.channels);
  Moments sums{.count = saved.shape.count(),
               .first = std::vector<double>(channels),
               .second = std::vector<double>(channels)};
  if (sums.count == 0) return sums;
  backend_.BackwardReduce({.shape = saved.shape,
                           .type = saved.type,
                           .x = call.x,
                           .dy = call.dy,
                           .mean = saved.mean.data(),
                           .sum_dy = sums.first.data(),
                           .sum_dy_xmu = sums.second.data()});
  return sums;
}

void BatchNormCalls::InputGradient(const BackwardArgs& call,
                                   const Moments& all) const {
  const Saved& saved = *call.saved;
  if (saved.shape.count() == 0) return;
  backend_.BackwardElementwise({.shape = saved.shape,
                                .type = saved.type,
                                .x = call.x,
                                .dy = call.dy,
                                .mean = saved.mean.data(),
                                .invstd = saved.invstd.data(),
                                .parameter_type = call.affine.type,
                                .gamma = call.affine.gamma,
                                .sum_dy = all.first.data(),
                                .sum_dy_xmu = all.second.data(),
                                .total_count = saved.count,
                                .dx = call.dx});
}

}  // namespace cohort
