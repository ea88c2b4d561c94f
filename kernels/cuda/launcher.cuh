#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/block.h"

namespace cohort::kernels::cuda {

template <typename Kernel>
__global__ void __launch_bounds__(Kernel::kThreads,
                                  Kernel::kBlocksPerMultiprocessor)
    Entry(const __grid_constant__ typename Kernel::Args args,
          const __grid_constant__ typename Kernel::ThePlan plan,
          const Exchange exchange) {
  __shared__ typename Kernel::Shared shared;
  Kernel::Run(DeviceThread(), shared, args, plan, exchange);
}

// Launches what the dispatch chose. The error comes from the launch itself and
// not from the thread's last one, which another library may have left.
struct StreamLauncher {
  template <typename Kernel>
  void Launch(const typename Kernel::Args& args,
              const typename Kernel::ThePlan& plan, int64_t blocks) {
    const void* parameters[] = {&args, &plan, &exchange};
    error = cudaLaunchKernel(
        Entry<Kernel>, dim3(static_cast<unsigned int>(blocks)),
        dim3(Kernel::kThreads), const_cast<void**>(parameters), 0, stream);
  }

  Exchange exchange = {};
  cudaStream_t stream = nullptr;
  cudaError_t error = cudaSuccess;
};

}  // namespace cohort::kernels::cuda
