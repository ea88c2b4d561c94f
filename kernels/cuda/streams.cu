#include "kernels/cuda/launch.h"
#include "kernels/cuda/launcher.cuh"
#include "kernels/cuda/pack_kernel.h"

namespace cohort::kernels::cuda {

int LaunchPack(bool pack, const PackArgs& args, const PackPlan& plan,
               CUstream_st* stream) {
  StreamLauncher launcher = {.stream = stream};
  if (pack) {
    launcher.Launch<PackKernel<true>>(args, plan, plan.blocks);
  } else {
    launcher.Launch<PackKernel<false>>(args, plan, plan.blocks);
  }
  return launcher.error;
}

int FillWithZeros(void* memory, int64_t bytes, CUstream_st* stream) {
  return cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), stream);
}

int TryCode() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, Entry<PackKernel<true>>);
}

}  // namespace cohort::kernels::cuda
