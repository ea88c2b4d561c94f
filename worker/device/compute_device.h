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

// The device that holds a worker's tensors and computes on them.
struct ComputeDevice {
  at::Device torch = at::kCPU;
  // Null on the CPU, where the pool is null too.
  std::unique_ptr<Accelerator> accelerator;
  std::unique_ptr<PinnedPool> pinned;

  // For people and fingerprints, such as "cpu" or "cuda:0 (NVIDIA H200)".
  std::string name() const;
};

// A ComputeDevice, borrowed, and how to compute there.
struct Compute {
  at::Device torch = at::kCPU;
  Accelerator* accelerator = nullptr;
  PinnedPool* pinned = nullptr;
  Precision precision = Precision::kFloat32;
  // Memory layout of images, and so of activations.
  at::MemoryFormat activations = at::MemoryFormat::Contiguous;
};

// The number in "cuda:N", 0 for "cuda", absent for "cpu".
// Errors: InvalidArgument for anything else.
absl::StatusOr<std::optional<int32_t>> ParseDevice(const std::string& text);

// Opens the device named by `text`, and tries LibTorch on it.
// Errors: those of ParseDevice; FailedPrecondition if this program or its
//   LibTorch has no CUDA, there is no driver, no GPU, or no code for it;
//   InvalidArgument if there is no GPU of this number. All begin with
//   "--device".
absl::StatusOr<ComputeDevice> OpenComputeDevice(const std::string& text);

// Like OpenComputeDevice, for GPU number `index`.
absl::StatusOr<ComputeDevice> OpenCudaDevice(int32_t index);

// Moves parameters and buffers; each stays the same tensor object.
// Errors: ResourceExhausted naming the tensor that did not fit.
absl::Status MoveTo(const Compute& to, torch::nn::Module& model);

}  // namespace cohort
