#pragma once

#include <torch/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/moments.h"
#include "kernels/backend.h"
#include "worker/batch_norm/binding.h"
#include "worker/batch_norm/rendezvous.h"
#include "worker/device/compute_device.h"
#include "worker/device/pinned_pool.h"

namespace cohort {

// The batch-norm call that a pass reached last, for whoever wants to know where
// it ended.
struct LayerMark {
  std::string layer;
  ReducePhase phase = ReducePhase::kForward;
  // Its input, which is let go of with the graph.
  at::ScalarType type = at::kFloat;
  std::vector<int64_t> shape;
};

// What the batch-norm calls of one training step need, and what they report.
struct StepContext {
  // Null: every call is normalised by its own batch.
  Rendezvous* rendezvous = nullptr;
  const kernels::Backend* backend = nullptr;
  // Where the tensors lie; the backend is for those on the CPU.
  Compute compute;
  // Kept up to date if not null.
  LayerMark* reached = nullptr;
  // Layers in eval mode are normalised by their batch, too, unless they are
  // frozen: a model can be scored as it was trained, with dropout off.
  bool normalises_by_batch_in_evaluation = false;

  // Out: forward calls per layer, in the order of BatchNormBinding::layers().
  std::vector<int32_t> calls;
  // Out, without a rendezvous: the moments of each call, ascending by
  // (layer, call) once the scope has ended.
  std::vector<CallMoments> moments;
  // Out, once the scope has ended: why moments are missing.
  absl::Status status;
};

// What one call is normalised by, float64 [channels] each; in the host's memory
// on the CPU and where the members met.
struct Normalizer {
  std::vector<double> mean;
  // 1 / sqrt(variance + epsilon).
  std::vector<double> invstd;
  // Elements per channel behind them, of all members.
  int64_t count = 0;
  // Both, [2, channels], on the device; undefined on the CPU.
  at::Tensor values;
};

// Moments of a call that are on their way from the device.
struct PendingMoments {
  int32_t layer = 0;
  int32_t call = 0;
  int64_t count = 0;
  int64_t channels = 0;
  // Means, then sums of squares; there once its event has happened.
  std::shared_ptr<PinnedBlock> block;
};

// While it lives, batch norm of the bound layers, called from this thread, is
// Cohort's:
//   y = (x - mean) / sqrt(M2/N + eps) * weight + bias
// with the moments of all members (or of this batch, without a rendezvous).
// A layer in eval mode (unless the context says otherwise), or frozen by the
// binding, is normalised by its moving statistics instead: no rendezvous, no
// call counted, nothing reported.
// The backward pass of those calls must run before the scope ends, while this
// thread waits for it (autograd has threads of its own for devices). Moving
// statistics are left alone: the server owns them.
//
// Layers that are not bound and other threads are not affected and get the
// stock operator. Scopes nest; the inner one counts.
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

  // Shared with the autograd nodes of the step, which may outlive it.
  struct Step {
    const BatchNormBinding* binding = nullptr;
    // Null once the scope has ended.
    StepContext* context = nullptr;
    // By (layer, call): what every call so far was normalised by.
    std::map<std::pair<int32_t, int32_t>, std::shared_ptr<const Normalizer>>
        normalizers;
    // Without a rendezvous, on a device.
    std::vector<PendingMoments> pending;
    // True within a RecomputeScope.
    bool recomputing = false;
  };

  // The innermost scope of this thread, or null.
  static const std::shared_ptr<Step>& Current();

 private:
  std::shared_ptr<Step> outer_;
};

// While it lives, forward calls of this thread repeat calls that the step has
// made: activation checkpointing drops what a segment of the model computed
// and computes it again before the segment's backward pass. A repeated call is
// normalised by what it was normalised by at first; it is no call of its own,
// meets nobody in a rendezvous and leaves no trace in the moving statistics.
// Its backward pass is that of the call it repeats.
//
//   const RecomputeScope::Mark mark = RecomputeScope::Here();
//   y = segment(x);                      // without autograd
//   ...                                  // in the backward pass:
//   const RecomputeScope again(mark);
//   y = segment(x);                      // with autograd
//
// May be on another thread than the mark was made on, which must wait
// meanwhile: autograd runs the backward passes of a GPU on a thread of its own.
// Must end before its BatchNormScope does; for a mark outside of one, or of one
// that has ended, it does nothing, and a layer in training mode then updates
// its statistics twice, as everywhere. Throws: c10::Error, from forward, if a
// call is repeated that was not made.
class RecomputeScope {
 public:
  // A place in the sequence of the step's calls.
  class Mark {
    friend class RecomputeScope;
    std::shared_ptr<BatchNormScope::Step> step_;
    std::vector<int32_t> calls_;
  };
  // Here and now, of this thread; a recomputed segment may have marks, too.
  static Mark Here();

  explicit RecomputeScope(const Mark& from);
  RecomputeScope(const RecomputeScope&) = delete;
  RecomputeScope& operator=(const RecomputeScope&) = delete;
  ~RecomputeScope();

 private:
  // Null: it does nothing.
  const std::shared_ptr<BatchNormScope::Step> step_;
  // What this thread goes back to.
  std::shared_ptr<BatchNormScope::Step> outer_;
  std::vector<int32_t> calls_;
  bool nested_ = false;
};

}  // namespace cohort
