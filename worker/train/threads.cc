#include "worker/train/threads.h"

#include <torch/torch.h>
#include <torch/version.h>

namespace cohort {

void SetArithmeticThreads(int32_t threads) {
  at::set_num_threads(threads);
  at::set_num_interop_threads(1);
}

std::string LibraryVersions() {
  return std::string("libtorch ") + TORCH_VERSION;
}

}  // namespace cohort
