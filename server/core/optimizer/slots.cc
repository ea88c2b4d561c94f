#include "server/core/optimizer/slots.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"

namespace cohort {
namespace {

constexpr SlotKind kVelocity{"velocity", &Slots::velocity};
constexpr SlotKind kScaledVelocity{"scaled_velocity", &Slots::scaled_velocity};
constexpr SlotKind kFirstMoment{"first_moment", &Slots::first_moment};
constexpr SlotKind kSecondMoment{"second_moment", &Slots::second_moment};
constexpr SlotKind kMeanSquare{"mean_square", &Slots::mean_square};
constexpr SlotKind kAverage{"average", &Slots::average};
constexpr SlotKind kRemainder{"remainder", &Slots::remainder};
constexpr SlotKind kAll[] = {kVelocity,     kScaledVelocity, kFirstMoment,
                             kSecondMoment, kMeanSquare,     kAverage,
                             kRemainder};

bool Holds(const std::vector<SlotKind>& kinds, const SlotKind& kind) {
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

SharedFloats Zeros(int64_t elements) {
  auto buffer = std::make_shared<FloatBuffer>(elements);
  std::fill_n(buffer->data(), elements, 0.0f);
  return buffer;
}

std::string Names(const std::vector<SlotKind>& kinds) {
  return absl::StrJoin(kinds, " and ",
                       [](std::string* out, const SlotKind& kind) {
                         absl::StrAppend(out, kind.name);
                       });
}

}  // namespace

SharedFloats Slots::*VelocityOf(const Slots& slots) {
  if (slots.velocity != nullptr) return &Slots::velocity;
  if (slots.scaled_velocity != nullptr) return &Slots::scaled_velocity;
  return nullptr;
}

absl::Span<const SlotKind> AllSlots() { return kAll; }

int64_t BytesOf(const Slots& slots) {
  int64_t bytes = 0;
  for (const SlotKind& kind : kAll) {
    const SharedFloats& floats = slots.*kind.buffer;
    if (floats == nullptr) continue;
    bytes += floats->size() * static_cast<int64_t>(sizeof(float));
  }
  return bytes;
}

std::vector<SlotKind> SlotsOf(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kAuto:
    case OptimizerKind::kSgd:
      return {};
    case OptimizerKind::kMomentum:
    case OptimizerKind::kNesterov:
      return {kVelocity};
    case OptimizerKind::kLars:
      return {kScaledVelocity};
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamW:
      return {kFirstMoment, kSecondMoment};
  }
  return {};
}

std::vector<SlotKind> SlotsOf(const OptimizerOptions& optimizer,
                              const PolicyOptions& policy) {
  std::vector<SlotKind> kinds = SlotsOf(optimizer.kind);
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
  std::erase(kept, kMeanSquare);
  std::erase(kept, kAverage);
  std::erase(kept, kRemainder);
  const std::vector<SlotKind> wanted = SlotsOf(to);
  if (kept.empty() || wanted.empty() || kept == wanted) {
    return absl::OkStatus();
  }
  std::vector<absl::string_view> fitting;
  for (OptimizerKind kind :
       {OptimizerKind::kMomentum, OptimizerKind::kNesterov,
        OptimizerKind::kAdam, OptimizerKind::kAdamW, OptimizerKind::kLars}) {
    if (SlotsOf(kind) == kept) fitting.push_back(OptimizerName(kind));
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
        kept = kind == kAverage ? weights[p] : Zeros(partitions[p].elements);
      }
      fitted[p].*kind.buffer = std::move(kept);
    }
    if (!Holds(wanted, kFirstMoment)) continue;
    const bool counted = !held.empty() && held[p].first_moment != nullptr;
    if (counted) fitted[p].updates = held[p].updates;
    fitted[p].updates.resize(partitions[p].slices.size(), 0);
  }
  return fitted;
}

absl::string_view OptimizerName(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kAuto:
      return "auto";
    case OptimizerKind::kSgd:
      return "sgd";
    case OptimizerKind::kMomentum:
      return "momentum";
    case OptimizerKind::kNesterov:
      return "nesterov";
    case OptimizerKind::kAdam:
      return "adam";
    case OptimizerKind::kAdamW:
      return "adamw";
    case OptimizerKind::kLars:
      return "lars";
  }
  return "";
}

}  // namespace cohort
