#include "server/core/optimizer/slots.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "kernels/optimizer_rules.h"

namespace cohort {
namespace {

constexpr SlotKind kMeanSquare{"mean_square", &Slots::mean_square};
constexpr SlotKind kAverage{"average", &Slots::average};
constexpr SlotKind kRemainder{"remainder", &Slots::remainder};
constexpr SlotKind kAll[] = {
#define COHORT_OPTIMIZER_SLOT(name) {#name, &Slots::name},
#include "common/optimizers.inc"
    kMeanSquare, kAverage, kRemainder};
// The last of them, which no rule has.
constexpr size_t kOfPolicies = 3;

bool Holds(const std::vector<SlotKind>& kinds, const SlotKind& kind) {
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

SlotKind Named(absl::string_view name) {
  const auto* found =
      std::find_if(std::begin(kAll), std::end(kAll),
                   [name](const SlotKind& kind) { return kind.name == name; });
  COHORT_CHECK(found != std::end(kAll), name);
  return *found;
}

// What slots.h promises of each rule; the same for the whole process.
struct RuleSlots {
  std::vector<SlotKind> all;
  std::vector<SlotKind> needed;
};

// By OptimizerKind. Leaked, so that no order of destruction matters.
const std::vector<RuleSlots>& ByRule() {
  static const auto& table = *[] {
    auto* rows = new std::vector<RuleSlots>(1);
    for (const kernels::OptimizerRule& rule : kernels::OptimizerRules()) {
      RuleSlots& row = rows->emplace_back();
      for (const kernels::RuleSlot& slot : rule.slots) {
        row.all.push_back(Named(slot.name));
        if (slot.kept == nullptr) row.needed.push_back(row.all.back());
      }
    }
    return rows;
  }();
  return table;
}

// Kept by a rule with some of its numbers only, or by the policy.
bool IsOptional(const SlotKind& kind) {
  return std::none_of(
      ByRule().begin(), ByRule().end(),
      [&kind](const RuleSlots& rule) { return Holds(rule.needed, kind); });
}

SharedFloats Filled(int64_t elements, float value) {
  auto buffer = std::make_shared<FloatBuffer>(elements);
  std::fill_n(buffer->data(), elements, value);
  return buffer;
}

std::string Names(const std::vector<SlotKind>& kinds) {
  return absl::StrJoin(kinds, " and ",
                       [](std::string* out, const SlotKind& kind) {
                         absl::StrAppend(out, kind.name);
                       });
}

}  // namespace

absl::Span<const SlotKind> AllSlots() { return kAll; }

absl::Span<const SlotKind> SlotsOfRules() {
  return AllSlots().first(std::size(kAll) - kOfPolicies);
}

int64_t BytesOf(const Slots& slots) {
  int64_t bytes = 0;
  for (const SlotKind& kind : kAll) {
    const SharedFloats& floats = slots.*kind.buffer;
    if (floats == nullptr) continue;
    bytes += floats->size() * static_cast<int64_t>(sizeof(float));
  }
  return bytes;
}

bool CountsUpdates(const Slots& slots) {
  for (const kernels::OptimizerRule& rule : kernels::OptimizerRules()) {
    const std::vector<SlotKind>& needed = SlotsOfRule(rule.kind);
    if (rule.counts_updates && slots.*needed.front().buffer != nullptr) {
      return true;
    }
  }
  return false;
}

const std::vector<SlotKind>& SlotsOfRule(OptimizerKind kind) {
  return ByRule()[static_cast<size_t>(kind)].all;
}

std::vector<SlotKind> SlotsOf(OptimizerKind kind) {
  return ByRule()[static_cast<size_t>(kind)].needed;
}

std::vector<SlotKind> SlotsOf(const OptimizerOptions& optimizer,
                              const PolicyOptions& policy) {
  std::vector<SlotKind> kinds;
  for (const kernels::RuleSlot& slot : kernels::RuleOf(optimizer.kind).slots) {
    if (slot.kept != nullptr && !slot.kept(optimizer.numbers)) continue;
    kinds.push_back(Named(slot.name));
    if (slot.initial == nullptr) continue;
    kinds.back().initial = static_cast<float>(optimizer.numbers.*slot.initial);
  }
  const StalenessOptions& staleness = policy.staleness;
  if (policy.aggregation != AggregationKind::kSync &&
      staleness.rule == StalenessRule::kCompensate &&
      staleness.compensation_adaptive) {
    kinds.push_back(kMeanSquare);
  }
  if (optimizer.ema_decay > 0) kinds.push_back(kAverage);
  if (RoundsChanges(policy)) kinds.push_back(kRemainder);
  return kinds;
}

std::vector<SlotKind> SlotsHeld(const std::vector<Slots>& held) {
  std::vector<SlotKind> kinds;
  for (const SlotKind& kind : kAll) {
    const bool there = std::any_of(
        held.begin(), held.end(),
        [&kind](const Slots& slots) { return slots.*kind.buffer != nullptr; });
    if (there) kinds.push_back(kind);
  }
  return kinds;
}

absl::Status CheckSlots(const std::vector<SlotKind>& held, OptimizerKind to) {
  std::vector<SlotKind> kept = held;
  std::erase_if(kept, &IsOptional);
  const std::vector<SlotKind> wanted = SlotsOf(to);
  if (kept.empty() || wanted.empty() || kept == wanted) {
    return absl::OkStatus();
  }
  std::vector<absl::string_view> fitting;
  for (const kernels::OptimizerRule& rule : kernels::OptimizerRules()) {
    if (SlotsOf(rule.kind) == kept) fitting.push_back(OptimizerName(rule.kind));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("--optimizer: got ", OptimizerName(to), ", which keeps ",
                   Names(wanted), ", want ", absl::StrJoin(fitting, " or "),
                   ", which continue with the present ", Names(kept),
                   "; to drop this state, first change to sgd"));
}

std::vector<Slots> FitSlots(const std::vector<Partition>& partitions,
                            const std::vector<SharedFloats>& weights,
                            const std::vector<Slots>& held,
                            const std::vector<SlotKind>& wanted) {
  COHORT_CHECK(held.empty() || held.size() == partitions.size(),
               absl::StrCat("got slots of ", held.size(), " partitions, want ",
                            partitions.size()));
  std::vector<Slots> fitted(partitions.size());
  for (size_t p = 0; p < partitions.size(); ++p) {
    if (!partitions[p].trainable || weights[p] == nullptr) continue;
    for (const SlotKind& kind : wanted) {
      SharedFloats kept = held.empty() ? nullptr : held[p].*kind.buffer;
      if (kept == nullptr) {
        kept = kind == kAverage ? weights[p]
                                : Filled(partitions[p].elements, kind.initial);
      }
      fitted[p].*kind.buffer = std::move(kept);
    }
    if (!CountsUpdates(fitted[p])) continue;
    if (!held.empty() && CountsUpdates(held[p])) {
      fitted[p].updates = held[p].updates;
    }
    fitted[p].updates.resize(partitions[p].slices.size(), 0);
  }
  return fitted;
}

}  // namespace cohort
