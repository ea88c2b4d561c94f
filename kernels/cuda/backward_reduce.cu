#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launcher.cuh"

namespace cohort::kernels::cuda {

int LaunchBackwardReduce(const BackwardReduceArgs& args, const Plan& plan,
                         const Exchange& exchange, CUstream_st* stream) {
  StreamLauncher launcher = {.exchange = exchange, .stream = stream};
  DispatchBackwardReduce(args, plan, launcher);
  return launcher.error;
}

}  // namespace cohort::kernels::cuda
