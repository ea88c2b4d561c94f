#include "server/partitions/byte_meter.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace cohort {
namespace {

TEST(ByteMeterTest, BytesCountUntilTheLastPieceIsGone) {
  ByteMeter meter;
  const std::vector<std::byte> bytes(6);
  ByteRope rope = meter.Count(ByteRope::Copy(bytes));
  ByteRope copy = rope;
  rope = ByteRope();
  EXPECT_EQ(meter.held_bytes(), 6);
  copy = ByteRope();
  EXPECT_EQ(meter.held_bytes(), 0);
}

}  // namespace
}  // namespace cohort
