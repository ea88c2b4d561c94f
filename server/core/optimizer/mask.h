#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model_layout.h"
#include "server/core/settings/options.h"

namespace cohort {

// Consecutive elements.
struct ElementRun {
  int64_t offset = 0;
  int64_t count = 0;

  friend bool operator==(const ElementRun&, const ElementRun&) = default;
};

// Ascending, disjoint, never empty, with a gap between neighbours.
using SharedRuns = std::shared_ptr<const std::vector<ElementRun>>;

// The frozen elements of one partition.
struct PartitionMask {
  // By slice: all of it is frozen.
  std::vector<bool> whole;
  // In the partition's elements, without those of `whole`. Null: none.
  SharedRuns runs;
};

// The frozen elements of a model. They and their slots keep their bits.
struct Mask {
  // By partition.
  std::vector<PartitionMask> partitions;
  // Frozen in all.
  int64_t elements = 0;
};

// Null: nothing is frozen.
using SharedMask = std::shared_ptr<const Mask>;

// The elements that `specs` freeze in a model; null without specs. Ranges
// must lie within their axis: NumPy would cut them, and freeze less than was
// asked for.
// Errors: InvalidArgument (text); FailedPrecondition naming the text and what
//   does not fit the model: a pattern that matches no parameter (with the
//   nearest names), more entries than axes, an index or range out of bounds.
absl::StatusOr<SharedMask> MakeMask(const std::vector<std::string>& specs,
                                    const ModelLayout& layout,
                                    const std::vector<Partition>& partitions);

// The mask of `options`, once every name in them is found in the model.
// Errors: as MakeMask; FailedPrecondition naming --no_decay and a pattern
//   that matches no parameter.
absl::StatusOr<SharedMask> MaskFor(const OptimizerOptions& options,
                                   const ModelLayout& layout,
                                   const std::vector<Partition>& partitions);

}  // namespace cohort
