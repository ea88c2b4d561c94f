#include "worker/train/exception_text.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace cohort {
namespace {

TEST(ExceptionTextTest, LeavesTheStackOfLibTorchOut) {
  EXPECT_EQ(TextOf(std::runtime_error("no such layer")), "no such layer");
  // Thrown, as the constructors differ between LibTorch's versions.
  try {
    TORCH_CHECK(false, "shapes differ");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()), "shapes differ");
    EXPECT_EQ(TextOf(error), "shapes differ");
  }
}

}  // namespace
}  // namespace cohort
