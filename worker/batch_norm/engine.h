#pragma once

#include <torch/types.h>

#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "worker/batch_norm/call.h"
#include "worker/batch_norm/scope.h"

namespace cohort {

// The arithmetic of a batch-norm call, and its meeting with the other members,
// for tensors that lie in one kind of memory.
//
// Throws: StepInterrupted if a rendezvous fails; c10::Error for types that the
//   kernels there do not have and for errors of the device.
class BatchNormEngine {
 public:
  virtual ~BatchNormEngine() = default;

  // Finds the moments of the inputs, meets the others once for all of them, and
  // says what each is normalised by.
  virtual std::vector<std::shared_ptr<const Normalizer>> ByBatch(
      absl::Span<const ForwardCall> calls) const = 0;
  // What to normalise by instead; both are per channel.
  virtual std::shared_ptr<const Normalizer> ByStatistics(
      const BatchNormCall& call, const at::Tensor& mean,
      const at::Tensor& variance) const = 0;
  // y = relu((x - mean) * invstd * gamma + beta + addend), as the call says.
  virtual void Normalize(const SavedCall& saved, const Parameters& parameters,
                         const at::Tensor& x, const at::Tensor& addend,
                         at::Tensor& y) const = 0;
  // In the order of the calls, of which a later one may find its dy in the dz
  // of an earlier one; meets the others once for all of them.
  virtual std::vector<BatchNormGradients> Backward(
      absl::Span<const BackwardCall> calls) const = 0;
};

// On the CPU, by the backend of the step.
const BatchNormEngine& HostEngine();

// On the accelerator of the step. Nothing waits for the device but a
// rendezvous, for the moments that it sends.
const BatchNormEngine& DeviceEngine();

// Of the step that a call belongs to.
const BatchNormEngine& EngineOf(const BatchNormCall& call);

}  // namespace cohort
