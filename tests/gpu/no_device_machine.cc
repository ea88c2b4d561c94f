#include <memory>
#include <string>

#include "tests/gpu/machine.h"

namespace cohort::kernels::cuda {

std::unique_ptr<Machine> NewDeviceMachine(std::string& why_not) {
  why_not = "this program was built without nvcc, so it has no GPU code";
  return nullptr;
}

}  // namespace cohort::kernels::cuda
