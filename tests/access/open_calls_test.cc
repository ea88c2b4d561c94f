#include "server/access/open_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

TEST(OpenCallsTest, OneClientCannotTakeThePlacesOfOthers) {
  OpenCalls calls(2);
  EXPECT_TRUE(calls.Check("a").ok());
  calls.Opened("a");
  EXPECT_TRUE(calls.Check("a").ok());
  calls.Opened("a");
  EXPECT_THAT(calls.Check("a"),
              IsError(kResourceExhausted, "a has 2 calls open"));
  EXPECT_TRUE(calls.Check("b").ok());
  calls.Closed("a");
  EXPECT_TRUE(calls.Check("a").ok());
}

TEST(OpenCallsTest, ClosingMoreThanWereOpenedIsHarmless) {
  OpenCalls calls(1);
  calls.Closed("a");
  calls.Opened("a");
  EXPECT_FALSE(calls.Check("a").ok());
}

}  // namespace
}  // namespace cohort
