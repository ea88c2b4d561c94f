#include "worker/train/threads.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

namespace cohort {
namespace {

TEST(SetArithmeticThreadsTest, EveryLibraryHasThatMany) {
  for (const int32_t threads : {2, 1}) {
    SetArithmeticThreads(threads);
    EXPECT_EQ(at::get_num_threads(), threads);
    EXPECT_EQ(at::get_num_interop_threads(), 1);
  }
}

// Otherwise each worker would compute on all cores, whatever --threads says,
// and its bits would depend on their number.
TEST(SetArithmeticThreadsTest, OpenBlasToo) {
  const auto get = reinterpret_cast<int (*)()>(
      dlsym(RTLD_DEFAULT, "openblas_get_num_threads"));
  if (get == nullptr) GTEST_SKIP() << "LibTorch here is not on OpenBLAS";
  for (const int32_t threads : {2, 1}) {
    SetArithmeticThreads(threads);
    EXPECT_EQ(get(), threads);
  }
}

}  // namespace
}  // namespace cohort
