#include "server/core/optimizer/group_options.h"

#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/flags/flag_table.h"
#include "kernels/optimizer_rules.h"
#include "server/core/optimizer/gradient_scales.h"

namespace cohort {
namespace {

constexpr absl::string_view kWeightDecay = "weight_decay";

// Null if there is no such number, or if it is a switch.
double* NumberNamed(absl::string_view name, OptimizerNumbers& numbers) {
  const auto as_double = []<typename T>(T& number) -> double* {
    if constexpr (std::is_same_v<T, double>) return &number;
    return nullptr;
  };
#define COHORT_OPTIMIZER_NUMBER(type, field, default_value, limits, help) \
  if (name == #field) return as_double(numbers.field);
#include "common/optimizers.inc"
  return nullptr;
}

// Whether a program may change it from step to step.
bool MayChange(absl::string_view name, const kernels::OptimizerRule& rule) {
  if (name == kWeightDecay) return true;
  for (const kernels::TorchClass& made : rule.torch_classes) {
    for (const kernels::TorchArgument& argument : made.arguments) {
      if (argument.number == name) return !argument.constant;
    }
  }
  return false;
}

bool KeepsSameSlots(const kernels::OptimizerRule& rule,
                    const OptimizerNumbers& before,
                    const OptimizerNumbers& after) {
  for (const kernels::RuleSlot& slot : rule.slots) {
    if (slot.kept != nullptr && slot.kept(before) != slot.kept(after)) {
      return false;
    }
  }
  return true;
}

absl::Status Refuse(const GroupNumber& number, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat(
      "numbers of the optimizer: got ", absl::CHexEscape(number.name), " ",
      number.value, " of group ", number.group, ", want ", wanted));
}

}  // namespace

GroupOptions::GroupOptions(OptimizerOptions options,
                           const std::vector<GroupNumber>& numbers)
    : options_(std::move(options)) {
  for (const GroupNumber& number : numbers) {
    Group& group =
        changed_.try_emplace(number.group, Group{.numbers = options_.numbers})
            .first->second;
    if (number.name == kWeightDecay) {
      group.weight_decay = number.value;
    } else {
      *NumberNamed(number.name, group.numbers) = number.value;
    }
  }
}

const OptimizerNumbers& GroupOptions::NumbersOf(
    const ParameterSpec& parameter) const {
  const auto found = changed_.find(parameter.rate_group);
  return found == changed_.end() ? options_.numbers : found->second.numbers;
}

double GroupOptions::DecayOf(const ParameterSpec& parameter) const {
  if (!IsDecayed(options_, parameter)) return 0;
  const auto found = changed_.find(parameter.rate_group);
  if (found != changed_.end() && found->second.weight_decay.has_value()) {
    return *found->second.weight_decay;
  }
  return options_.weight_decay * parameter.decay_multiplier;
}

absl::Status CheckGroupNumbers(const std::vector<GroupNumber>& numbers,
                               const OptimizerOptions& options,
                               int32_t groups) {
  const kernels::OptimizerRule& rule = kernels::RuleOf(options.kind);
  const GroupNumber* before = nullptr;
  for (const GroupNumber& number : numbers) {
    if (before != nullptr && std::tie(before->group, before->name) >=
                                 std::tie(number.group, number.name)) {
      return Refuse(number, "groups, and the names of each, ascending");
    }
    before = &number;
    if (number.group < 0 || number.group >= groups) {
      return Refuse(number, absl::StrCat("a group below ", groups));
    }
    OptimizerNumbers changed = options.numbers;
    double* const value = NumberNamed(number.name, changed);
    if (!MayChange(number.name, rule) ||
        (value == nullptr && number.name != kWeightDecay)) {
      return Refuse(number, absl::StrCat("a number that --optimizer=",
                                         OptimizerName(options.kind),
                                         " accepts in each step"));
    }
    const FlagLimits& limits = FindFlag(ServerFlagTable(), number.name)->limits;
    if (!limits.Contains(number.value)) {
      return Refuse(number, limits.ToString());
    }
    if (value == nullptr) continue;
    *value = number.value;
    if (!KeepsSameSlots(rule, options.numbers, changed)) {
      return Refuse(number, "a value with the same state of the optimizer");
    }
  }
  return absl::OkStatus();
}

}  // namespace cohort
