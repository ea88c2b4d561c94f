#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/model_layout.h"

namespace cohort {

// The layout of a gradient arena: one place for each partition, in order.
// Server and worker compute it from the same partitions.
struct ArenaLayout {
  // By partition, in bytes; multiples of 64.
  std::vector<int64_t> offsets;
  // The whole arena; above 0.
  int64_t size_bytes = 0;
};

ArenaLayout LayOutArena(absl::Span<const Partition> partitions);

}  // namespace cohort
