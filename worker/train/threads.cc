#include "worker/train/threads.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <torch/torch.h>
#include <torch/version.h>

namespace cohort {

namespace {

// LibTorch does not pass the number on to OpenBLAS, which then uses all cores
// and spins while it waits for work.
void SetOpenBlasThreads(int32_t threads) {
  using Setter = void (*)(int);
  const auto set =
      reinterpret_cast<Setter>(dlsym(RTLD_DEFAULT, "openblas_set_num_threads"));
  if (set != nullptr) set(threads);
}

}  // namespace

void SetArithmeticThreads(int32_t threads) {
  at::set_num_threads(threads);
  // May be set only once.
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
