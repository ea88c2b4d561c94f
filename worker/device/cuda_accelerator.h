#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/device/accelerator.h"

struct CUstream_st;

namespace cohort {

// GPU number `device`. `compute_stream` returns the stream that computes the
// calling thread's tensors; it must stay callable as long as the accelerator
// lives.
// Errors: those of kernels::cuda::OpenDevice.
absl::StatusOr<std::unique_ptr<Accelerator>> OpenCudaAccelerator(
    int32_t device, std::function<CUstream_st*()> compute_stream);

}  // namespace cohort
