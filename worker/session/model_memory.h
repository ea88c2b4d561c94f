#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/byte_rope.h"
#include "common/model_layout.h"

namespace cohort {

// Where the numbers of a worker's model are: gradients are read from it and
// weights are written to it, a partition at a time. A device copies while the
// pass continues, so a gradient is fetched first and taken later.
//
// Thread safety: one thread at a time, which may be one of autograd's.
class ModelMemory {
 public:
  struct Gradient {
    int32_t partition = 0;
    // See Client::SendGradient.
    ByteRope bytes;
    std::vector<int32_t> absent_slices;
  };

  virtual ~ModelMemory() = default;

  // Sets how the server splits the model. Call it before any of the calls
  // below.
  void SetPartitions(std::vector<Partition> partitions) {
    partitions_ = std::move(partitions);
  }
  const std::vector<Partition>& partitions() const { return partitions_; }

  // Starts to fetch the gradient of a partition.
  virtual absl::Status Fetch(int32_t partition) = 0;
  // The gradient whose fetch started first, if it has arrived. With `wait`, the
  // calling thread waits for it. Absent if none is available.
  virtual absl::StatusOr<std::optional<Gradient>> Take(bool wait) = 0;
  // Waits for all fetches, and discards the results.
  virtual void Drop() = 0;

  // Overwrites the parameters of each partition whose rope is not empty.
  // Errors: InvalidArgument if a rope has the wrong length.
  virtual absl::Status Load(absl::Span<const ByteRope> weights) = 0;

 protected:
  // Errors: InvalidArgument unless every rope is empty or has its partition's
  //   length.
  absl::Status CheckSizes(absl::Span<const ByteRope> weights) const;

 private:
  std::vector<Partition> partitions_;
};

}  // namespace cohort
