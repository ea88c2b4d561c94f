#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/model_layout.h"

namespace cohort {

// Largest header of a registration, which contains layout, plan and statistics.
inline constexpr int64_t kLayoutBytesMax = int64_t{8} << 20;

// Settings that decide how much memory a model needs on the server.
struct ModelNeeds {
  // Optimizer values for each trainable weight.
  int32_t slots = 0;
  // Kinds of moving statistics that are kept side by side.
  int32_t statistics_kinds = 1;
  // Memory that this process may use.
  int64_t memory_bytes = 0;
  // Limit on the weights, before optimizer slots and spare versions.
  int64_t weight_bytes_max = int64_t{16} << 30;
};

// Bytes of all parameters; `layout` must have passed CheckModelLimits.
int64_t WeightBytes(const ModelLayout& layout);

// Checks every number of `layout` from which the server computes an allocation:
// counts of parameters, layers, dimensions and channels, lengths of names, and
// the memory for two versions of weights, slots and statistics. `layout` must
// be valid.
// Errors: InvalidArgument naming the entry, the value seen and the limit: this
//   server can never hold the model, so the client must not retry.
absl::Status CheckModelLimits(const ModelLayout& layout,
                              const ModelNeeds& needs);

}  // namespace cohort
