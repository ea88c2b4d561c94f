#include "worker/train/threads.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <torch/torch.h>
#include <torch/version.h>

namespace cohort {

namespace {

// LibTorch does not tell OpenBLAS, which then takes all cores, and waits for
// work by spinning.
void SetOpenBlasThreads(int32_t threads) {
  using Setter = void (*)(int);
  const auto set =
      reinterpret_cast<Setter>(dlsym(RTLD_DEFAULT, "openblas_set_num_threads"));
  if (set != nullptr) set(threads);
}

}  // namespace

void SetArithmeticThreads(int32_t threads) {
  at::set_num_threads(threads);
  // May be set once only.
  if (at::get_num_interop_threads() != 1) at::set_num_interop_threads(1);
  SetOpenBlasThreads(threads);
}

void RunOnArithmeticThreads(
    int64_t tasks, absl::FunctionRef<void(int64_t begin, int64_t end)> run) {
  at::parallel_for(0, tasks, /*grain_size=*/1, run);
}

std::string LibraryVersions() {
  return std::string("libtorch ") + TORCH_VERSION;
}

}  // namespace cohort
