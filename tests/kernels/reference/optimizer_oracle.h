#pragma once

#include <array>
#include <string>
#include <vector>

#include "common/optimizers.h"

// The optimizers as their papers and PyTorch have them, in float64, one element
// at a time: what tests compare the kernels' rules with. Independent of
// kernels/cpu/optimizers.
namespace cohort::kernels {

// An optimizer with some of its numbers.
struct OptimizerCase {
  OptimizerKind kind = OptimizerKind::kAuto;
  OptimizerNumbers numbers = {};

  std::string name() const;
  // Moves weights around 1 by about a tenth a step, with gradients around 1.
  double rate() const;
};

// Every rule with the default numbers, and with such that it keeps other slots.
const std::vector<OptimizerCase>& OptimizerCases();

// One element.
struct OracleElement {
  double weight = 0;
  // The rule's state, which begins as 0 unless a number says otherwise.
  std::array<double, 4> state = {};
};

struct OracleStep {
  OptimizerKind kind = OptimizerKind::kAuto;
  OptimizerNumbers numbers = {};
  double rate = 0;
  double decay = 0;
  // Number of this update, from 1.
  double update = 1;
};

// One update by the gradient `g`, without a trust ratio.
void OracleUpdate(const OracleStep& step, double g, OracleElement& element);

}  // namespace cohort::kernels
