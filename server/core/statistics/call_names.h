#pragma once

#include <string>
#include <vector>

#include "common/model_layout.h"
#include "common/moments.h"

// Batch-norm calls as people know them.
namespace cohort {

// The layer's name, and the name of the call if it has one: "encoder.bn3",
// "encoder.bn3 (teacher)", or the site of a call that is not registered.
std::string CallNameOf(const CallPlace& place,
                       const std::vector<BatchNormSpec>& layers);

// "call 0 of encoder.bn3", "call 0 of encoder.bn3 in part 1", "the backward
// pass of call 0 of encoder.bn3".
std::string CallTextOf(const CallPlace& place,
                       const std::vector<BatchNormSpec>& layers);

}  // namespace cohort
