#include "server/core/rendezvous.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "kernels/moments_fold.h"

namespace cohort {
namespace {

bool SameBits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

bool SameBits(const Moments& a, const Moments& b) {
  return a.count == b.count && SameBits(a.first, b.first) &&
         SameBits(a.second, b.second);
}

}  // namespace

bool IsFinite(const Moments& moments) {
  const auto finite = [](double v) { return std::isfinite(v); };
  return std::all_of(moments.first.begin(), moments.first.end(), finite) &&
         std::all_of(moments.second.begin(), moments.second.end(), finite);
}

RendezvousTable::RendezvousTable(std::vector<Rank> ranks, bool fixed)
    : members_(std::move(ranks)), fixed_(fixed) {}

size_t RendezvousTable::PositionOf(Rank rank) const {
  const auto it = std::find(members_.begin(), members_.end(), rank);
  COHORT_CHECK(it != members_.end(),
               absl::StrCat("rank ", rank.value(), " is no member"));
  return static_cast<size_t>(it - members_.begin());
}

RendezvousTable::Outcome RendezvousTable::Contribute(const ReduceKey& key,
                                                     Rank rank,
                                                     Moments moments) {
  Entry& entry = entries_[Place{key.layer, key.call, key.phase}];
  if (entry.contributions.empty()) {
    entry.key = key;
    entry.contributions.resize(members_.size());
    entry.waiting.resize(members_.size());
    entry.missing = static_cast<int32_t>(members_.size());
  }
  const size_t at = PositionOf(rank);
  Outcome outcome;
  std::optional<Moments>& slot = entry.contributions[at];
  if (slot.has_value()) {
    outcome.repeated = true;
    outcome.mismatch = !SameBits(*slot, moments);
    entry.waiting[at] = entry.result == nullptr;
    outcome.result = entry.result;
    if (outcome.result != nullptr) outcome.answer.push_back(rank);
    return outcome;
  }
  slot = std::move(moments);
  entry.waiting[at] = true;
  --entry.missing;
  if (fixed_ && entry.missing == 0) Complete(entry, outcome);
  return outcome;
}

void RendezvousTable::Complete(Entry& entry, Outcome& outcome) const {
  std::vector<const Moments*> parts;
  parts.reserve(members_.size());
  for (const auto& part : entry.contributions) parts.push_back(&*part);
  entry.result = std::make_shared<const Moments>(
      entry.key.phase == ReducePhase::kForward ? kernels::FoldForward(parts)
                                               : kernels::FoldBackward(parts));
  outcome.result = entry.result;
  outcome.nonfinite = !IsFinite(*entry.result);
  for (size_t i = 0; i < members_.size(); ++i) {
    if (entry.waiting[i]) outcome.answer.push_back(members_[i]);
    entry.waiting[i] = false;
  }
}

std::vector<RendezvousTable::Completed> RendezvousTable::Fix(
    const std::vector<Rank>& members) {
  std::vector<Completed> completed;
  for (auto& [place, entry] : entries_) {
    Entry kept{.key = entry.key};
    for (Rank rank : members) {
      const size_t at = PositionOf(rank);
      if (!entry.contributions[at].has_value()) ++kept.missing;
      kept.contributions.push_back(std::move(entry.contributions[at]));
      kept.waiting.push_back(entry.waiting[at]);
    }
    entry = std::move(kept);
  }
  members_ = members;
  fixed_ = true;
  // Only ranks that are no members were there.
  std::erase_if(entries_, [&members](const auto& e) {
    return e.second.missing == static_cast<int32_t>(members.size());
  });
  for (auto& [place, entry] : entries_) {
    if (entry.missing > 0) continue;
    completed.push_back({.key = entry.key});
    Complete(entry, completed.back().outcome);
  }
  return completed;
}

bool RendezvousTable::Waits(Rank rank) const {
  const size_t at = PositionOf(rank);
  return std::any_of(entries_.begin(), entries_.end(),
                     [at](const auto& e) { return e.second.waiting[at]; });
}

void RendezvousTable::Forget(Rank rank) {
  const size_t at = PositionOf(rank);
  for (auto& [place, entry] : entries_) entry.waiting[at] = false;
}

std::vector<RendezvousTable::Pending> RendezvousTable::AllPending() const {
  std::vector<Pending> pending;
  for (const auto& [place, entry] : entries_) {
    for (size_t i = 0; i < members_.size(); ++i) {
      if (entry.waiting[i]) {
        pending.push_back({.key = entry.key, .rank = members_[i]});
      }
    }
  }
  return pending;
}

std::vector<Rank> RendezvousTable::Missing() const {
  std::vector<Rank> missing;
  for (size_t i = 0; i < members_.size(); ++i) {
    const bool lacking = std::any_of(
        entries_.begin(), entries_.end(),
        [i](const auto& e) { return !e.second.contributions[i].has_value(); });
    if (lacking) missing.push_back(members_[i]);
  }
  return missing;
}

std::vector<CallMoments> RendezvousTable::ForwardOf(Rank rank) const {
  const size_t at = PositionOf(rank);
  std::vector<CallMoments> calls;
  for (const auto& [place, entry] : entries_) {
    if (std::get<2>(place) != ReducePhase::kForward) continue;
    if (!entry.contributions[at].has_value()) continue;
    calls.push_back({.layer = std::get<0>(place),
                     .call = std::get<1>(place),
                     .moments = *entry.contributions[at]});
  }
  return calls;
}

}  // namespace cohort
