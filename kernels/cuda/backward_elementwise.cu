#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launcher.cuh"

namespace cohort::kernels::cuda {

int LaunchBackwardElementwise(const BackwardElementwiseArgs& args,
                              const Plan& plan, CUstream_st* stream) {
  StreamLauncher launcher = {.stream = stream};
  DispatchBackwardElementwise(args, plan, launcher);
  return launcher.error;
}

}  // namespace cohort::kernels::cuda
