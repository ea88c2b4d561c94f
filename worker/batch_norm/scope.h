#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/moments.h"
#include "kernels/backend.h"
#include "worker/batch_norm/binding.h"
#include "worker/batch_norm/host_batch_norm.h"
#include "worker/batch_norm/rendezvous.h"
#include "worker/device/compute_device.h"
#include "worker/device/pinned_pool.h"

namespace cohort {

// The last batch-norm call that a pass reached, for error messages.
struct LayerMark {
  std::string layer;
  ReducePhase phase = ReducePhase::kForward;
  // The call's input; the tensor itself is released with the graph.
  at::ScalarType type = at::kFloat;
  std::vector<int64_t> shape;
};

// Inputs and results of the batch-norm calls of one training step.
struct StepContext {
  // If null, every call is normalised by its own batch.
  Rendezvous* rendezvous = nullptr;
  const kernels::Backend* backend = nullptr;
  // Where the tensors are; the backend is for tensors on the CPU.
  Compute compute;
  // Updated at every call. May be null.
  LayerMark* reached = nullptr;
  // If true, layers in eval mode are also normalised by their batch, unless
  // they are frozen: a model can be scored the way it was trained, with dropout
  // off.
  bool normalises_by_batch_in_evaluation = false;

  // The part of the step that is being computed, from 0. Calls are numbered
  // from 0 in each. It may be changed between calls.
  int32_t part = 0;

  // Out: forward calls, in the order of BatchNormBinding::layers(), part by
  // part.
  std::vector<int32_t> calls;
  // Out, without a rendezvous: the moments of each call, ascending by
  // (layer, call) once the scope has ended.
  std::vector<CallMoments> moments;
  // Out, once the scope has ended: not OK if moments are missing.
  absl::Status status;
};

// Mean and deviation that one call is normalised by. Set in host memory on the
// CPU and after a rendezvous.
struct Normalizer : BatchStatistics {
  // Mean and invstd, [2, channels], on the device; undefined on the CPU.
  at::Tensor values;
};

// Moments of a call that are on their way from the device.
struct PendingMoments {
  int32_t layer = 0;
  int32_t call = 0;
  int64_t count = 0;
  int64_t channels = 0;
  // Means, then sums of squares; valid once the block's event has happened.
  std::shared_ptr<PinnedBlock> block;
};

// While it lives, Cohort computes the batch norm of the bound layers in calls
// from this thread:
//   y = (x - mean) / sqrt(M2/N + eps) * weight + bias
// with the moments of all members or, without a rendezvous, of this batch. A
// layer that is in eval mode (unless the context says otherwise) or frozen by
// the binding is normalised by its moving statistics instead. It has no
// rendezvous, and its call is neither counted nor reported. The backward pass
// of those calls must run before the scope ends, while this thread waits for it
// (autograd has separate threads for devices). Moving statistics do not
// change: the server owns them.
//
// Layers that are not bound and other threads are not affected and get the
// stock operator. Scopes nest; the inner one applies.
//
// Shapes: [N, C] up to [N, C, D, H, W], any N including 0; contiguous and
//   channels last come out as they went in, other strides contiguous.
// Types: float32, float64 (on the CPU only), float16, bfloat16; y and dx are of
//   the input's type, sums are float64, and scale and shift float32 with the
//   halves. The stock modules refuse a batch with one element a channel; the
//   functions of functional.h do not.
// Throws: StepInterrupted, from forward or backward, if a rendezvous or the
//   device fails or the scope of a backward pass has ended; c10::Error for an
//   input that does not fit the layer.
class BatchNormScope {
 public:
  // Both must outlive the scope. Clears the context's outputs.
  BatchNormScope(const BatchNormBinding& binding, StepContext* context);
  BatchNormScope(const BatchNormScope&) = delete;
  BatchNormScope& operator=(const BatchNormScope&) = delete;
  ~BatchNormScope();

  // State shared with the autograd nodes of the step, which may outlive it.
  struct Step {
    const BatchNormBinding* binding = nullptr;
    // Null once the scope has ended.
    StepContext* context = nullptr;
    // Moments on their way from a device; used without a rendezvous.
    std::vector<PendingMoments> pending;

    // Counts a call of `layer` in the present part. Returns its number.
    int32_t CountCall(int32_t layer) const;
  };

  // The innermost scope of this thread, or null.
  static const std::shared_ptr<Step>& Current();

 private:
  std::shared_ptr<Step> outer_;
};

}  // namespace cohort
