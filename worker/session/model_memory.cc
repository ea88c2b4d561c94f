#include "worker/session/model_memory.h"

#include "absl/strings/str_cat.h"

namespace cohort {

absl::Status ModelMemory::CheckSizes(absl::Span<const ByteRope> weights) const {
  if (weights.size() != partitions_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("weights: got ", weights.size(), " partitions, want ",
                     partitions_.size()));
  }
  for (size_t p = 0; p < weights.size(); ++p) {
    const int64_t wanted = partitions_[p].elements * int64_t{sizeof(float)};
    const int64_t bytes = weights[p].size_bytes();
    if (bytes == 0 || bytes == wanted) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "weights of partition ", p, ": got ", bytes, " bytes, want ", wanted));
  }
  return absl::OkStatus();
}

}  // namespace cohort
