#include "kernels/optimizer_rules.h"

#include <cstring>
#include <type_traits>
#include <vector>

#include "common/check.h"
#include "kernels/cpu/optimizers/rules_inl.h"

namespace cohort::kernels {
namespace {

template <typename Rule, OptimizerKind kKind>
OptimizerRule RowOf() {
  OptimizerRule rule = Rule::Describe();
  rule.kind = kKind;
  using Scalars = typename Rule::Scalars;
  static_assert(std::is_trivially_copyable_v<Scalars> &&
                sizeof(Scalars) <= sizeof(RuleStep::scalars));
  static_assert(Rule::kSlots <= kRuleSlotsMax);
  COHORT_CHECK(rule.slots.size() == Rule::kSlots, OptimizerName(kKind));
  rule.step = [](const RuleInputs& in) {
    const Scalars scalars = Rule::At(in);
    RuleStep step{.rule = kKind};
    std::memcpy(step.scalars.data(), &scalars, sizeof(scalars));
    return step;
  };
  return rule;
}

// kAuto first. Leaked, so that no order of destruction matters.
const std::vector<OptimizerRule>& Table() {
  static const auto& table = *new std::vector<OptimizerRule>{
      OptimizerRule(),
#define COHORT_OPTIMIZER(Name, name) \
  RowOf<cpu::HWY_NAMESPACE::Name, OptimizerKind::k##Name>(),
#include "common/optimizers.inc"
  };
  return table;
}

}  // namespace

absl::Span<const OptimizerRule> OptimizerRules() {
  return absl::MakeConstSpan(Table()).subspan(1);
}

const OptimizerRule& RuleOf(OptimizerKind kind) {
  return Table()[static_cast<size_t>(kind)];
}

}  // namespace cohort::kernels
