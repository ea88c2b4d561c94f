#include "kernels/optimizer_rules.h"

#include <cstddef>
#include <vector>

#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

namespace cohort::kernels {
namespace {

// What a rule declares must be in the tables that others read.
TEST(OptimizerRulesTest, EachRuleIsWhole) {
  const std::vector<absl::string_view> names = OptimizerNames();
  ASSERT_EQ(OptimizerRules().size() + 1, names.size());
  for (size_t k = 1; k < names.size(); ++k) {
    SCOPED_TRACE(names[k]);
    const OptimizerRule& rule = OptimizerRules()[k - 1];
    EXPECT_EQ(static_cast<size_t>(rule.kind), k);
    EXPECT_EQ(&RuleOf(rule.kind), &rule);
    EXPECT_NE(rule.step, nullptr);
    EXPECT_LE(rule.slots.size(), kRuleSlotsMax);
    EXPECT_FALSE(rule.torch_classes.empty());
    EXPECT_LE(rule.adapts_update, rule.trust_ratio != nullptr);
    // Those that are always kept are the first.
    bool optional = false;
    for (const RuleSlot& slot : rule.slots) {
      EXPECT_FALSE(optional && slot.kept == nullptr) << slot.name;
      optional = slot.kept != nullptr;
    }
    if (!rule.counts_updates) continue;
    EXPECT_EQ(rule.slots.at(0).kept, nullptr);
  }
}

}  // namespace
}  // namespace cohort::kernels
