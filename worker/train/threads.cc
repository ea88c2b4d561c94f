#include "worker/train/threads.h"

#include <ATen/Parallel.h>
#include <torch/torch.h>
#include <torch/version.h>

namespace cohort {

void SetArithmeticThreads(int32_t threads) {
  at::set_num_threads(threads);
  at::set_num_interop_threads(1);
}

void RunOnArithmeticThreads(
    int64_t tasks, absl::FunctionRef<void(int64_t begin, int64_t end)> run) {
  at::parallel_for(0, tasks, /*grain_size=*/1, run);
}

std::string LibraryVersions() {
  return std::string("libtorch ") + TORCH_VERSION;
}

}  // namespace cohort
