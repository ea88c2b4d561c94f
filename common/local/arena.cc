#include "common/local/arena.h"

#include <algorithm>

namespace cohort {

ArenaLayout LayOutArena(absl::Span<const Partition> partitions) {
  constexpr int64_t kAlignment = 64;
  ArenaLayout layout;
  layout.offsets.reserve(partitions.size());
  for (const Partition& partition : partitions) {
    layout.offsets.push_back(layout.size_bytes);
    const int64_t bytes =
        partition.elements * static_cast<int64_t>(sizeof(float));
    layout.size_bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  // An empty file cannot be mapped.
  layout.size_bytes = std::max(layout.size_bytes, kAlignment);
  return layout;
}

}  // namespace cohort
