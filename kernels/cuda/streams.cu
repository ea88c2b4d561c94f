#include "kernels/cuda/fold_kernel.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launcher.cuh"
#include "kernels/cuda/pack_kernel.h"

namespace cohort::kernels::cuda {
namespace {

template <typename T>
void LaunchPackOf(bool pack, const PackArgs& args, const PackPlan& plan,
                  StreamLauncher& launcher) {
  if (pack) {
    launcher.Launch<PackKernel<T, true>>(args, plan, plan.blocks);
  } else {
    launcher.Launch<PackKernel<T, false>>(args, plan, plan.blocks);
  }
}

}  // namespace

int LaunchFold(const FoldArgs& args, const FoldPlan& plan,
               CUstream_st* stream) {
  StreamLauncher launcher = {.stream = stream};
  if (plan.width == 1) {
    launcher.Launch<FoldKernel<1>>(args, plan, plan.blocks);
  } else {
    launcher.Launch<FoldKernel<4>>(args, plan, plan.blocks);
  }
  return launcher.error;
}

int LaunchPack(DataType type, bool pack, const PackArgs& args,
               const PackPlan& plan, CUstream_st* stream) {
  StreamLauncher launcher = {.stream = stream};
  switch (type) {
    case DataType::kFloat16:
      LaunchPackOf<Float16>(pack, args, plan, launcher);
      break;
    case DataType::kBFloat16:
      LaunchPackOf<BFloat16>(pack, args, plan, launcher);
      break;
    case DataType::kFloat32:
    case DataType::kFloat64:
      LaunchPackOf<float>(pack, args, plan, launcher);
      break;
  }
  return launcher.error;
}

int FillWithZeros(void* memory, int64_t bytes, CUstream_st* stream) {
  return cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), stream);
}

int TryCode() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, Entry<FoldKernel<4>>);
}

}  // namespace cohort::kernels::cuda
