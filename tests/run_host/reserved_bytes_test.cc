#include "server/partitions/reserved_bytes.h"

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

TEST(ReservedBytesTest, AreGivenBackAndTheFirstPasses) {
  ReservedBytes bytes(10);
  ReservedBytes::Reservation first = OkValue(bytes.Take("values", 12));
  EXPECT_TRUE(absl::IsResourceExhausted(bytes.Take("values", 1).status()));
  first.reset();
  const auto second = bytes.Take("values", 6);
  EXPECT_TRUE(bytes.Take("values", 4).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(bytes.Take("values", 5).status()));
}

}  // namespace
}  // namespace cohort
