#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launcher.cuh"

namespace cohort::kernels::cuda {

int LaunchNormalize(const NormalizeArgs& args, const Plan& plan,
                    CUstream_st* stream) {
  StreamLauncher launcher = {.stream = stream};
  DispatchNormalize(args, plan, launcher);
  return launcher.error;
}

}  // namespace cohort::kernels::cuda
