#include "common/unix_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

TEST(UnixAddressTest, APathEndsWithAZeroAndAnAbstractNameWithItsLength) {
  const auto path = OkValue(UnixAddressOf("/run/cohort/socket"));
  EXPECT_STREQ(path.name.sun_path, "/run/cohort/socket");
  EXPECT_FALSE(IsAbstractSocket("/run/cohort/socket"));
  const auto abstract = OkValue(UnixAddressOf("@cohort"));
  EXPECT_TRUE(IsAbstractSocket("@cohort"));
  EXPECT_EQ(abstract.name.sun_path[0], '\0');
  EXPECT_EQ(abstract.size, offsetof(sockaddr_un, sun_path) + 7);
}

TEST(UnixAddressTest, RefusesNamesThatTheSystemDoesNotPermit) {
  EXPECT_TRUE(UnixAddressOf(std::string(107, 'a')).ok());
  for (const std::string& bad : {std::string(), std::string(108, 'a')}) {
    EXPECT_TRUE(absl::IsInvalidArgument(UnixAddressOf(bad).status())) << bad;
  }
  EXPECT_THAT(UnixAddressOf(""),
              IsError(kInvalidArgument, "got a socket name of 0 bytes"));
}

}  // namespace
}  // namespace cohort
