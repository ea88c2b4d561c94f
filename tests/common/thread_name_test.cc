#include "common/thread_name.h"

#include <gtest/gtest.h>

#include <string>

namespace cohort {
namespace {

TEST(ThreadNameTest, IsCutAtWhatTheSystemKeeps) {
  const std::string before = ThreadName();
  SetThreadName("fold");
  EXPECT_EQ(ThreadName(), "fold");
  SetThreadName("a name of many letters");
  EXPECT_EQ(ThreadName(), "a name of many ");
  SetThreadName(before);
}

}  // namespace
}  // namespace cohort
