#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/assignment.h"
#include "kernels/backend.h"
#include "worker/batch_norm/binding.h"
#include "worker/batch_norm/rendezvous.h"

namespace cohort {

// What the batch-norm calls of one training step need, and what they report.
struct StepContext {
  // Null: every call is normalised by its own batch.
  Rendezvous* rendezvous = nullptr;
  const kernels::Backend* backend = nullptr;

  // Out: forward calls per layer, in the order of BatchNormBinding::layers().
  std::vector<int32_t> calls;
  // Out, without a rendezvous: the moments of each call, ascending by
  // (layer, call) once the scope has ended.
  std::vector<CallMoments> moments;
};

// While it lives, training-mode batch norm of the bound layers, called from
// this thread, is Cohort's:
//   y = (x - mean) / sqrt(M2/N + eps) * weight + bias
// with the moments of all members (or of this batch, without a rendezvous).
// The backward pass of those calls must run on the same thread before the
// scope ends. Moving statistics are left alone: the server owns them.
//
// Layers that are not bound, calls in eval mode and other threads are not
// affected and get the stock operator. Scopes nest; the inner one counts.
//
// Shapes: [N, C] up to [N, C, D, H, W], any N including 0, contiguous or
//   channels last; float32 or float64, accumulated in float64. The stock
//   modules themselves refuse a batch with exactly one element a channel.
// Throws: StepInterrupted, from forward or backward, if a rendezvous fails
//   or the scope of a backward pass has ended; c10::Error for an input that
//   does not fit the layer.
class BatchNormScope {
 public:
  // Both must outlive the scope. Clears the context's outputs.
  BatchNormScope(const BatchNormBinding& binding, StepContext* context);
  BatchNormScope(const BatchNormScope&) = delete;
  BatchNormScope& operator=(const BatchNormScope&) = delete;
  ~BatchNormScope();

  // Shared with the autograd nodes of the step, which may outlive it.
  struct Step {
    const BatchNormBinding* binding = nullptr;
    // Null once the scope has ended.
    StepContext* context = nullptr;
  };

  // The innermost scope of this thread, or null.
  static const std::shared_ptr<Step>& Current();

 private:
  std::shared_ptr<Step> outer_;
};

}  // namespace cohort
