#include "worker/train/exception_text.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace cohort {
namespace {

TEST(ExceptionTextTest, LeavesTheStackOfLibTorchOut) {
  EXPECT_EQ(TextOf(std::runtime_error("no such layer")), "no such layer");
  const c10::Error error("shapes differ", "at frame 0\nat frame 1");
  EXPECT_EQ(TextOf(error), "shapes differ");
}

}  // namespace
}  // namespace cohort
