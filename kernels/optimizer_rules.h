#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/optimizers.h"
#include "kernels/optimizer_step.h"

// What the rules of kernels/cpu/optimizers are, apart from their arithmetic.
namespace cohort::kernels {

// What one update of a slice depends on.
struct RuleInputs {
  const OptimizerNumbers& numbers;
  double rate = 0;
  // 0 for parameters that are exempt.
  double decay = 0;
  // Multiplies the mean gradient.
  double gradient_scale = 1;
  // Number of this update of the slice, from 1. Only for rules that count.
  int64_t update = 1;
  // In place of the new weights the step gives what they are moved by at a rate
  // of -1, for its norm. Only for rules whose ratio is of the update.
  bool update_only = false;
};

// A buffer that a rule keeps.
struct RuleSlot {
  // A COHORT_OPTIMIZER_SLOT.
  std::string name;
  // The value that it starts from. Null: 0.
  double OptimizerNumbers::*initial = nullptr;
  // Whether it is kept with these numbers. Null: always.
  bool (*kept)(const OptimizerNumbers&) = nullptr;
};

// An argument of a class of PyTorch, and the number that it is here.
struct TorchArgument {
  std::string name;
  std::string number;
  // Position in a tuple such as betas; -1: the argument is the number.
  int position = -1;
  // It must stay as it is while the run continues, because the rule takes its
  // value of earlier steps from the present one.
  bool constant = false;
};

// An argument of a class of PyTorch that must have this value for the rule.
struct TorchValue {
  std::string name;
  double value = 0;
};

// A class of optimizers in Python that the rule computes.
struct TorchClass {
  // Such as "torch.optim.SGD".
  std::string name;
  std::vector<TorchArgument> arguments = {};
  std::vector<TorchValue> values = {};
};

struct OptimizerRule {
  OptimizerKind kind = OptimizerKind::kAuto;
  // In the order in which UpdateRun has them, those that are always kept first.
  std::vector<RuleSlot> slots;
  // The updates of each slice are counted.
  bool counts_updates = false;
  // Factor of a parameter from its norms, neither of them 0. Null: it needs
  // none. `norm` is that of the gradient, and the factor is of gradient and
  // decay; with `adapts_update` both are of the update, with the decay in it.
  double (*trust_ratio)(const OptimizerNumbers& numbers, double weight_norm,
                        double norm, double decay) = nullptr;
  bool adapts_update = false;
  // The argument of Backend::Update.
  RuleStep (*step)(const RuleInputs&) = nullptr;
  // If there are several rules for a class, the first whose values fit.
  std::vector<TorchClass> torch_classes;
};

// All rules, in the order of optimizers.inc.
absl::Span<const OptimizerRule> OptimizerRules();

// For kAuto a rule without slots and step.
const OptimizerRule& RuleOf(OptimizerKind kind);

}  // namespace cohort::kernels
