// The only file that needs LibTorch's CUDA part; no_torch_cuda.cc replaces it
// in builds without CUDA.
#include <ATen/Context.h>
#include <ATen/ops/ones.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/torch.h>

#include <exception>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/device/compute_device.h"
#include "worker/device/cuda_accelerator.h"
#include "worker/device/out_of_memory.h"

namespace cohort {
namespace {

// Computes one sum on the device: LibTorch may have no code for it, or find no
// memory.
absl::Status TryLibTorch(at::Device device) {
  try {
    const double sum =
        at::ones({2}, at::TensorOptions().device(device)).sum().item<double>();
    if (sum == 2) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("LibTorch computed 1 + 1 = ", sum, " on this device"));
  } catch (const std::exception& e) {
    if (IsOutOfMemory(e)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory is left on this device: ", e.what()));
    }
    return absl::FailedPreconditionError(absl::StrCat(
        "LibTorch ", TORCH_VERSION, " cannot compute on this device: ",
        e.what(), "; use a LibTorch that was built for this GPU and driver"));
  }
}

}  // namespace

absl::StatusOr<ComputeDevice> OpenCudaDevice(int32_t index) {
  const at::Device torch_device(at::kCUDA, static_cast<at::DeviceIndex>(index));
  ComputeDevice device{.torch = torch_device};
  COHORT_ASSIGN_OR_RETURN(device.accelerator,
                          OpenCudaAccelerator(index, [index] {
                            return c10::cuda::getCurrentCUDAStream(
                                       static_cast<c10::DeviceIndex>(index))
                                .stream();
                          }));
  // float32 means float32: TF32 would keep only 10 bits of a convolution's
  // inputs.
  at::globalContext().setAllowTF32CuDNN(false);
  at::globalContext().setAllowTF32CuBLAS(false);
  // A repeated step should give the same bits.
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setBenchmarkCuDNN(false);
  COHORT_RETURN_IF_ERROR(TryLibTorch(torch_device));
  device.pinned = std::make_unique<PinnedPool>(*device.accelerator);
  return device;
}

}  // namespace cohort
