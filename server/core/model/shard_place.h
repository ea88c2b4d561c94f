#pragma once

#include <cstdint>

namespace cohort {

// Which of a run's partitions a server process owns: those whose index leaves
// `index` when divided by `count`. Shard 0 is the coordinator's process.
struct ShardPlace {
  int32_t index = 0;
  int32_t count = 1;

  static int32_t OwnerOf(int32_t partition, int32_t count) {
    return partition % count;
  }
  bool Owns(int32_t partition) const {
    return OwnerOf(partition, count) == index;
  }

  friend bool operator==(const ShardPlace&, const ShardPlace&) = default;
};

}  // namespace cohort
