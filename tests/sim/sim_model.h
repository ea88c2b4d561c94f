#pragma once

#include <cstdint>
#include <vector>

#include "common/assignment.h"
#include "common/byte_rope.h"
#include "common/float_buffer.h"
#include "common/ids.h"
#include "common/model_layout.h"
#include "common/moments.h"
#include "common/push.h"
#include "tests/sim/scenario.h"

namespace cohort::sim {

// A gradient in memory. Any holder of a rope over it can tell whose it is,
// whatever the server believes.
struct GradientBlock {
  std::vector<float> values;
  Rank rank;
  PushKey key;
  int64_t epoch = 0;
  IndexRange range;
};

// One batch-norm call of a step.
struct BatchNormCall {
  int32_t layer = 0;
  int32_t call = 0;
};

// The inputs that determine a contribution.
struct StepInput {
  const RunSpec* spec = nullptr;
  int64_t epoch = 0;
  IndexRange range;
  // One buffer a partition.
  std::vector<SharedFloats> weights;
};

// The batch-norm calls of a forward pass, in order. The last layer is called
// twice.
std::vector<BatchNormCall> CallsOf(const ModelLayout& layout);
std::vector<int32_t> CallCounts(const ModelLayout& layout);

// Different for each rank, to show where training began.
std::vector<SharedFloats> InitialValues(
    const RunSpec& spec, const std::vector<Partition>& partitions, Rank rank);

// Deterministic replacements for a network's arithmetic. `combined` holds the
// moments that earlier calls were normalised with, so that a wrong one changes
// everything that follows.
Moments ForwardMoments(const StepInput& input, size_t call,
                       const std::vector<Moments>& combined);
Moments BackwardMoments(const StepInput& input, size_t call,
                        const Moments& forward);
// `forward` and `backward` are those of call GradientCall(partition).
std::vector<float> Gradient(const StepInput& input, int32_t partition,
                            const Moments& forward, const Moments& backward);
// Slices without a gradient in this batch; their values are zeros.
std::vector<int32_t> AbsentSlices(const StepInput& input,
                                  const Partition& partition);
size_t GradientCall(const ModelLayout& layout, int32_t partition);
// 0 for every fourth possible begin of a range: a batch whose labels are all
// ignored.
double LossWeight(const IndexRange& range);

}  // namespace cohort::sim
