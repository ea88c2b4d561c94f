#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/assignment.h"
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
  // The same in bfloat16, if that is what is sent.
  std::vector<std::byte> halves;
  Rank rank;
  Incarnation incarnation;
  PushKey key;
  int64_t epoch = 0;
  std::vector<IndexRange> ranges;
  // That of the closing.
  std::optional<std::string> front_end_state;
};

// The state of a training program: how many steps led to it, and a number that
// depends on each of them.
struct FrontEndState {
  int64_t steps = 0;
  uint64_t hash = 0;

  friend bool operator==(const FrontEndState&, const FrontEndState&) = default;
};

// Whether a step from `read` changes the state.
bool ChangesState(FrontEndStates states, Version read);
// The state after one more step that changes it.
FrontEndState NextState(const FrontEndState& state);
// The bytes that `rank` sends.
std::string Encode(const FrontEndState& state, Rank rank);
// Null: the initial state.
FrontEndState Decode(const std::string* text);

// A stream of own data. Of all streams of all processes, no two batches have a
// sample in common.
struct OwnStream {
  Rank rank;
  // Earlier processes of this rank.
  int64_t process = 0;
  int64_t batch_size = 1;
};

// Batch `number` of a stream, of about batch_size samples.
IndexRange BatchOf(const OwnStream& stream, int64_t number);

// One batch-norm call of a step.
struct BatchNormCall {
  int32_t layer = 0;
  int32_t call = 0;
};

// The inputs that determine a contribution.
struct StepInput {
  const RunSpec* spec = nullptr;
  int64_t epoch = 0;
  // With local steps: as many samples as they have, from the first one.
  IndexRange range;
  std::vector<IndexRange> local_steps;
  // Of the weights that are read; under sync that of the step.
  Version version;
  // One buffer a partition.
  std::vector<SharedFloats> weights;
};

// The ranges of the samples.
std::vector<IndexRange> RangesOf(const StepInput& input);

// The batch-norm calls of a forward pass, in order. The last layer is called
// twice.
std::vector<BatchNormCall> CallsOf(const ModelLayout& layout);
std::vector<int32_t> CallCounts(const ModelLayout& layout);
// The calls that a rank makes with this input, in order, as indices into
// CallsOf.
std::vector<size_t> MadeCalls(const StepInput& input);
// The updates of the step.
int32_t UpdatesOf(const StepInput& input);
// Where a call meets the others, the same for all ranks: some second calls of a
// layer are the first of a second part of the step.
CallPlace PlaceOf(const StepInput& input, size_t call);
// The training program passes through the call on its own, too, before the
// step's backward pass; all ranks that make the call do.
bool HasOwnPass(const StepInput& input, size_t call);
// Its sums, of those of the step's backward pass, and what both lead to.
Moments PassMoments(Moments backward);
Moments WithPass(Moments backward, const std::optional<Moments>& pass);

// Different for each rank, to show where training began.
std::vector<SharedFloats> InitialValues(
    const RunSpec& spec, const std::vector<Partition>& partitions, Rank rank);

// Deterministic replacements for a network's arithmetic. `combined` holds the
// moments that earlier calls were normalised with, so that a wrong one changes
// everything that follows. `call` is an index into CallsOf.
Moments ForwardMoments(const StepInput& input, size_t call,
                       const std::vector<Moments>& combined);
Moments BackwardMoments(const StepInput& input, size_t call,
                        const Moments& forward);
// `forward` and `backward` are those of call GradientCall(partition), or have
// no samples if the rank makes no call.
std::vector<float> Gradient(const StepInput& input, int32_t partition,
                            const Moments& forward, const Moments& backward);
// Slices without a gradient in this batch; their values are zeros.
std::vector<int32_t> AbsentSlices(const StepInput& input,
                                  const Partition& partition);
// One of so many calls that the rank makes; 0 if it makes none.
size_t GradientCall(size_t calls, int32_t partition);
// 0 for every fourth possible begin of a range: a batch whose labels are all
// ignored.
double LossWeight(const IndexRange& range);

}  // namespace cohort::sim
