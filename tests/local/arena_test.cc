#include "common/local/arena.h"

#include <gtest/gtest.h>

namespace cohort {
namespace {

TEST(ArenaTest, PartitionsLieOneAfterTheOtherOnCacheLines) {
  const std::vector<Partition> partitions = {
      {.elements = 1}, {.elements = 16}, {.elements = 17}, {.elements = 3}};
  const ArenaLayout layout = LayOutArena(partitions);
  EXPECT_EQ(layout.offsets, (std::vector<int64_t>{0, 64, 128, 256}));
  EXPECT_EQ(layout.size_bytes, 320);
}

TEST(ArenaTest, IsNeverEmpty) { EXPECT_EQ(LayOutArena({}).size_bytes, 64); }

}  // namespace
}  // namespace cohort
