#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/float_buffer.h"
#include "server/checkpoint/checkpoint.h"
#include "server/core/events/effects.h"

namespace cohort {

// A small model in which a parameter spans two partitions, a partition holds
// three parameters, and one parameter is frozen:
//   conv.weight [2, 3]  0 1 2 3 | 4 5
//   bn.weight [1]                     6
//   bn.bias [1]                         7
//   head.weight [3], frozen                8 9 10
// Each weight is its number above plus 100 times the version, each velocity
// (none if frozen) is the negative of that. Layer `bn` keeps statistics of one
// channel; `bn_plain`, with two channels, keeps none.
RunState ExampleState(int64_t version);
// That of a training program: with an optimizer, rates, a state of any bytes,
// and own data.
RunState ProgramState(int64_t version);

RunIdentity ExampleIdentity();
// Gives the state a separate snapshot, which can be changed.
ModelSnapshot& OwnSnapshot(RunState& state);

// The newest checkpoint's version, whose state has to be that of the example;
// -1 if there is none.
int64_t LoadedVersion(const std::string& folder,
                      std::vector<std::string>& problems);

// The velocity of each partition.
std::vector<SharedFloats> Velocities(const ModelSnapshot& snapshot);

// Fails the running test if anything in the two states differs.
void ExpectSameState(const RunState& seen, const RunState& wanted);

}  // namespace cohort
