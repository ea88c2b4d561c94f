#pragma once

#include <torch/types.h>

#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "worker/batch_norm/call.h"
#include "worker/batch_norm/scope.h"

namespace cohort {

// The arithmetic of batch-norm calls, including the rendezvous with the other
// members, for tensors in one kind of memory.
//
// Throws: StepInterrupted if a rendezvous fails; c10::Error for types that the
//   kernels do not support and for errors of the device.
class BatchNormEngine {
 public:
  virtual ~BatchNormEngine() = default;

  // Computes the moments of the inputs, exchanges all of them in one
  // rendezvous, and returns a normalizer for each call.
  virtual std::vector<std::shared_ptr<const Normalizer>> ByBatch(
      absl::Span<const ForwardCall> calls) const = 0;
  // A normalizer from given statistics, both per channel.
  virtual std::shared_ptr<const Normalizer> ByStatistics(
      const BatchNormCall& call, const at::Tensor& mean,
      const at::Tensor& variance) const = 0;
  // y = relu((x - mean) * invstd * gamma + beta + addend), as the call says.
  virtual void Normalize(const SavedCall& saved, const Parameters& parameters,
                         const at::Tensor& x, const at::Tensor& addend,
                         at::Tensor& y) const = 0;
  // Gradients in the order of the calls. A later call may use the dz of an
  // earlier one as its dy. All calls share one rendezvous.
  virtual std::vector<BatchNormGradients> Backward(
      absl::Span<const BackwardCall> calls) const = 0;
};

// For tensors on the CPU; uses the step's backend.
const BatchNormEngine& HostEngine();

// For tensors on the step's accelerator. It waits for the device only where a
// rendezvous has to send moments.
const BatchNormEngine& DeviceEngine();

// The engine of the step that the call belongs to.
const BatchNormEngine& EngineOf(const BatchNormCall& call);

}  // namespace cohort
