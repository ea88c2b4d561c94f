#include <torch/version.h>

#include "absl/strings/str_cat.h"
#include "worker/device/compute_device.h"

namespace cohort {

absl::StatusOr<ComputeDevice> OpenCudaDevice(int32_t /*index*/) {
  return absl::FailedPreconditionError(absl::StrCat(
      "this cohort-worker was built without support for CUDA: ",
      COHORT_HAS_NVCC != 0 ? "" : "without nvcc, ", "with LibTorch ",
      TORCH_VERSION, COHORT_TORCH_HAS_CUDA != 0 ? "" : ", which has no CUDA",
      "; use --device=cpu, or build it with CUDA's nvcc and PyTorch's LibTorch "
      "(cmake -DCOHORT_TORCH_DIR=FOLDER_OF_PYTHON_PACKAGE_TORCH)"));
}

}  // namespace cohort
