#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/device/accelerator.h"
#include "worker/device/pinned_pool.h"
#include "worker/device/precision.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace cohort {

// Where a worker's tensors lie and are computed.
struct ComputeDevice {
  at::Device torch = at::kCPU;
  // Null on the CPU; then the pool is, too.
  std::unique_ptr<Accelerator> accelerator;
  std::unique_ptr<PinnedPool> pinned;

  // For people and fingerprints, such as "cpu" or "cuda:0 (NVIDIA H200)".
  std::string name() const;
};

// The same, borrowed, and how to compute there.
struct Compute {
  at::Device torch = at::kCPU;
  Accelerator* accelerator = nullptr;
  PinnedPool* pinned = nullptr;
  Precision precision = Precision::kFloat32;
  // How images, and so activations, lie in memory.
  at::MemoryFormat activations = at::MemoryFormat::Contiguous;
};

// The number in "cuda:N", 0 for "cuda", absent for "cpu".
// Errors: InvalidArgument for anything else.
absl::StatusOr<std::optional<int32_t>> ParseDevice(const std::string& text);

// Opens what `text` names, and tries LibTorch on it.
// Errors: those of ParseDevice; FailedPrecondition if this program or its
//   LibTorch has no CUDA, there is no driver, no GPU, or no code for it;
//   InvalidArgument if there is no GPU of this number. All begin with
//   "--device".
absl::StatusOr<ComputeDevice> OpenComputeDevice(const std::string& text);

// As OpenComputeDevice, of GPU number `index`.
absl::StatusOr<ComputeDevice> OpenCudaDevice(int32_t index);

// Moves parameters and buffers; each stays the tensor that it is.
// Errors: ResourceExhausted naming the tensor that did not fit.
absl::Status MoveTo(const Compute& to, torch::nn::Module& model);

}  // namespace cohort
