#pragma once

#include <cstddef>
#include <vector>

#include "absl/strings/string_view.h"

// The optimizers by name, and the numbers that they are tuned by: the rows of
// optimizers.inc.
namespace cohort {

enum class OptimizerKind {
  // The optimizer of the workers' registration (see TakeWorkersOptimizer).
  // It is never in force once the run has a model.
  kAuto,
#define COHORT_OPTIMIZER(Name, name) k##Name,
#include "common/optimizers.inc"
};

// "auto" and all rules, by the number of their OptimizerKind.
inline std::vector<absl::string_view> OptimizerNames() {
  return {
      "auto",
#define COHORT_OPTIMIZER(Name, name) #name,
#include "common/optimizers.inc"
  };
}

inline absl::string_view OptimizerName(OptimizerKind kind) {
  return OptimizerNames()[static_cast<size_t>(kind)];
}

// The numbers of all rules; each rule reads some of them.
struct OptimizerNumbers {
#define COHORT_OPTIMIZER_NUMBER(type, name, default_value, limits, help) \
  type name = default_value;
#include "common/optimizers.inc"

  friend bool operator==(const OptimizerNumbers&,
                         const OptimizerNumbers&) = default;
};

}  // namespace cohort
