#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/moments.h"
#include "kernels/backend.h"
#include "kernels/batch_norm_args.h"
#include "kernels/data_type.h"
#include "worker/python/worker_session.h"

namespace cohort {

// Batch norm of one training step: moments of each call, their rendezvous, and
// both passes over tensors in host memory, given as raw pointers. The
// arithmetic is that of the C++ worker (HostEngine), to the bit. For tensors
// elsewhere the caller computes, and only meets here.
//
// Thread safety: one thread at a time.
class BatchNormCalls {
 public:
  // What the two passes of a call share.
  struct Saved {
    int32_t layer = 0;
    int32_t call = 0;
    // Of the local batch, to recognise the call when it is computed again.
    Moments local;
    // Of all members; `variance` is 0 if no member has samples.
    std::vector<double> mean;
    std::vector<double> variance;
    // 1 / sqrt(variance + epsilon).
    std::vector<double> invstd;
    // Elements per channel of all members.
    int64_t count = 0;
  };
  using SharedCall = std::shared_ptr<const Saved>;

  // Scale and shift, of `type`; null if the layer has none.
  struct Affine {
    kernels::DataType type = kernels::DataType::kFloat32;
    const void* gamma = nullptr;
    const void* beta = nullptr;
  };

  struct ForwardArgs {
    int32_t layer = 0;
    double epsilon = 1e-5;
    kernels::BatchShape shape;
    kernels::DataType type = kernels::DataType::kFloat32;
    const void* x = nullptr;
    Affine affine;
    // Out.
    void* y = nullptr;
  };

  struct BackwardArgs {
    SharedCall saved;
    kernels::BatchShape shape;
    kernels::DataType type = kernels::DataType::kFloat32;
    const void* x = nullptr;
    const void* dy = nullptr;
    Affine affine;
    // Whether the input's gradient is needed. This is a property of the model,
    // so all members agree on whether the rendezvous takes place.
    bool needs_dx = false;
    // Out. An empty tensor has no address.
    void* dx = nullptr;
  };

  // Gradients of scale and shift, [channels].
  struct AffineGradients {
    std::vector<double> gamma;
    std::vector<double> beta;
  };

  // Both must outlive this object. `names` has one entry a layer.
  BatchNormCalls(WorkerSession& session, const kernels::Backend& backend,
                 std::vector<std::string> names);

  // Starts a step.
  void Begin();
  // Forward calls per layer in this step.
  const std::vector<int32_t>& calls() const { return counts_; }

  // Calls that do not need each other's output; they meet in one rendezvous
  // request.
  std::vector<SharedCall> Forward(absl::Span<const ForwardArgs> calls);
  // A call that is computed again, as activation checkpointing does: normalised
  // as the first time, without a rendezvous.
  // Errors: FailedPrecondition if the step has no call of this layer with the
  //   same moments.
  absl::StatusOr<SharedCall> Repeat(const ForwardArgs& call);
  // The backward passes of calls, in one rendezvous request.
  std::vector<AffineGradients> Backward(absl::Span<const BackwardArgs> calls);

  // ---- the same, computed by the caller

  struct LocalCall {
    int32_t layer = 0;
    double epsilon = 1e-5;
    Moments moments;
  };
  std::vector<SharedCall> Meet(std::vector<LocalCall> calls);
  // The call with these moments, up to a relative difference of `tolerance`:
  // devices may compute a batch again with other rounding.
  // Errors: FailedPrecondition if there is none.
  absl::StatusOr<SharedCall> Recall(int32_t layer, const Moments& local,
                                    double tolerance) const;
  // Sums over all members; `sums` of the local batch, one a call.
  std::vector<Moments> MeetBackward(absl::Span<const SharedCall> calls,
                                    std::vector<Moments> sums);

 private:
  Moments LocalMoments(const ForwardArgs& call) const;
  void Normalize(const ForwardArgs& call, const Saved& saved) const;
  Moments BackwardSums(const BackwardArgs& call) const;
  void InputGradient(const BackwardArgs& call, const Moments& all) const;

  WorkerSession& session_;
  const kernels::Backend& backend_;
  const std::vector<std::string> names_;
  std::vector<int32_t> counts_;
  std::vector<std::vector<SharedCall>> made_;
};

}  // namespace cohort
