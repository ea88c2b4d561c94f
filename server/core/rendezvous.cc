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

RendezvousTable::RendezvousTable(std::vector<Rank> ranks,
                                 const Options& options)
    : members_(std::move(ranks)), options_(options), waits_(members_.size()) {}

size_t RendezvousTable::PositionOf(Rank rank) const {
  const auto it = std::lower_bound(members_.begin(), members_.end(), rank);
  COHORT_CHECK(it != members_.end() && *it == rank,
               absl::StrCat("rank ", rank.value(), " is no member"));
  return static_cast<size_t>(it - members_.begin());
}

size_t RendezvousTable::GroupAt(size_t position) const {
  if (options_.group_size == 0) return 0;
  return position / static_cast<size_t>(options_.group_size);
}

size_t RendezvousTable::GroupCount() const {
  return members_.empty() ? 0 : GroupAt(members_.size() - 1) + 1;
}

RendezvousTable::Range RendezvousTable::RangeOf(size_t group) const {
  const size_t size = options_.group_size == 0
                          ? members_.size()
                          : static_cast<size_t>(options_.group_size);
  return {.begin = group * size,
          .end = std::min((group + 1) * size, members_.size())};
}

std::vector<std::vector<Rank>> RendezvousTable::Groups() const {
  std::vector<std::vector<Rank>> groups(GroupCount());
  for (size_t i = 0; i < members_.size(); ++i) {
    groups[GroupAt(i)].push_back(members_[i]);
  }
  return groups;
}

bool RendezvousTable::IsFull(const Entry& entry, size_t group) const {
  const Range range = RangeOf(group);
  return entry.present[group] == static_cast<int32_t>(range.end - range.begin);
}

RendezvousTable::Outcome RendezvousTable::Contribute(const ReduceKey& key,
                                                     Rank rank, Moments moments,
                                                     Instant now) {
  Entry& entry =
      entries_[{.layer = key.layer, .call = key.call, .phase = key.phase}];
  if (entry.contributions.empty()) {
    entry.key = key;
    entry.contributions.resize(members_.size());
    entry.waiting.resize(members_.size());
    entry.since.resize(members_.size());
    entry.present.resize(GroupCount());
    entry.folds.resize(GroupCount());
    entry.results.resize(GroupCount());
  }
  const size_t at = PositionOf(rank);
  const size_t group = GroupAt(at);
  Outcome outcome;
  std::optional<Moments>& slot = entry.contributions[at];
  if (slot.has_value()) {
    outcome.repeated = true;
    outcome.mismatch = !SameBits(*slot, moments);
    outcome.result = entry.results[group];
    SetWaiting(entry, at, outcome.result == nullptr);
    if (outcome.result == nullptr) entry.since[at] = now;
    if (outcome.result != nullptr) outcome.answer.push_back(rank);
    return outcome;
  }
  slot = std::move(moments);
  SetWaiting(entry, at, true);
  entry.since[at] = now;
  if (++entry.present[group] == 1) ++open_count_;
  if (!options_.fixed) return outcome;
  Extend(entry, group);
  if (IsFull(entry, group)) Complete(entry, group, now, outcome);
  return outcome;
}

void RendezvousTable::Extend(Entry& entry, size_t group) {
  const Range range = RangeOf(group);
  Fold& fold = entry.folds[group];
  fold.end = std::max(fold.end, range.begin);
  for (; fold.end < range.end; ++fold.end) {
    const std::optional<Moments>& next = entry.contributions[fold.end];
    if (!next.has_value()) return;
    if (fold.end == range.begin) {
      fold.total.first.resize(next->first.size());
      fold.total.second.resize(next->second.size());
    }
    if (entry.key.phase == ReducePhase::kForward) {
      kernels::AddForward(*next, fold.total);
    } else {
      kernels::AddBackward(*next, fold.total);
    }
  }
}

void RendezvousTable::Observe(const Entry& entry, Range range, Instant now) {
  RendezvousWaits& seen = observed(entry.key.phase);
  size_t last = range.begin;
  for (size_t i = range.begin; i < range.end; ++i) {
    // A life that was lost has waited for nothing.
    if (entry.waiting[i]) seen.waits.push_back(now - entry.since[i]);
    if (entry.since[i] >= entry.since[last]) last = i;
  }
  // Alone nobody is waited for.
  if (range.end - range.begin > 1) seen.last.push_back(members_[last]);
}

void RendezvousTable::Complete(Entry& entry, size_t group, Instant now,
                               Outcome& outcome) {
  const Range range = RangeOf(group);
  Observe(entry, range, now);
  entry.results[group] =
      std::make_shared<const Moments>(std::move(entry.folds[group].total));
  outcome.result = entry.results[group];
  outcome.nonfinite = !IsFinite(*outcome.result);
  for (size_t i = range.begin; i < range.end; ++i) {
    if (entry.waiting[i]) outcome.answer.push_back(members_[i]);
    SetWaiting(entry, i, false);
  }
  --open_count_;
}

void RendezvousTable::SetWaiting(Entry& entry, size_t position, bool waiting) {
  if (entry.waiting[position] == waiting) return;
  entry.waiting[position] = waiting;
  int32_t& count = waits_[position];
  if (waiting && count++ == 0) ++waiting_count_;
  if (!waiting && --count == 0) --waiting_count_;
}

std::vector<RendezvousTable::Completed> RendezvousTable::Fix(
    const std::vector<Rank>& members, Instant now) {
  std::map<CallPlace, Entry> open = std::exchange(entries_, {});
  const std::vector<Rank> candidates = std::exchange(members_, members);
  options_.fixed = true;
  waits_.assign(members_.size(), 0);
  waiting_count_ = 0;
  open_count_ = 0;
  std::vector<Completed> completed;
  for (auto& [place, before] : open) {
    Entry kept{.key = before.key};
    kept.present.resize(GroupCount());
    kept.folds.resize(GroupCount());
    kept.results.resize(GroupCount());
    for (size_t i = 0; i < candidates.size(); ++i) {
      const bool stays = std::find(members.begin(), members.end(),
                                   candidates[i]) != members.end();
      if (!stays) continue;
      const size_t at = kept.contributions.size();
      if (before.contributions[i].has_value() &&
          ++kept.present[GroupAt(at)] == 1) {
        ++open_count_;
      }
      kept.contributions.push_back(std::move(before.contributions[i]));
      kept.waiting.push_back(false);
      SetWaiting(kept, at, before.waiting[i]);
      kept.since.push_back(before.since[i]);
    }
    COHORT_CHECK(kept.contributions.size() == members_.size(),
                 "a member was no candidate");
    const bool empty = std::all_of(kept.present.begin(), kept.present.end(),
                                   [](int32_t count) { return count == 0; });
    // Only ranks that are no members were there.
    if (empty) continue;
    Entry& entry = entries_[place] = std::move(kept);
    for (size_t group = 0; group < GroupCount(); ++group) {
      Extend(entry, group);
      if (!IsFull(entry, group)) continue;
      completed.push_back({.key = entry.key});
      Complete(entry, group, now, completed.back().outcome);
    }
  }
  return completed;
}

RendezvousTable::Held RendezvousTable::HeldOf(Rank rank) const {
  const size_t at = PositionOf(rank);
  Held held;
  for (const auto& [place, entry] : entries_) {
    if (entry.waiting[at]) ++held.waiting;
    const std::optional<Moments>& moments = entry.contributions[at];
    if (!moments.has_value()) continue;
    held.bytes += static_cast<int64_t>(
        (moments->first.size() + moments->second.size()) * sizeof(double));
  }
  return held;
}

bool RendezvousTable::Has(const ReduceKey& key, Rank rank) const {
  const auto at = entries_.find(CallPlace{key.layer, key.call, key.phase});
  return at != entries_.end() &&
         at->second.contributions[PositionOf(rank)].has_value();
}

std::vector<CallPlace> RendezvousTable::WaitsOf(Rank rank) const {
  const size_t at = PositionOf(rank);
  std::vector<CallPlace> places;
  for (const auto& [place, entry] : entries_) {
    if (entry.waiting[at]) places.push_back(place);
  }
  return places;
}

std::vector<CallPlace> RendezvousTable::LackedBy(Rank rank) const {
  const size_t at = PositionOf(rank);
  const size_t group = GroupAt(at);
  std::vector<CallPlace> places;
  for (const auto& [place, entry] : entries_) {
    if (entry.present[group] > 0 && !entry.contributions[at].has_value()) {
      places.push_back(place);
    }
  }
  return places;
}

void RendezvousTable::Forget(Rank rank) {
  const size_t at = PositionOf(rank);
  for (auto& [place, entry] : entries_) SetWaiting(entry, at, false);
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
    const size_t group = GroupAt(i);
    const bool lacking = std::any_of(
        entries_.begin(), entries_.end(), [i, group](const auto& e) {
          return e.second.present[group] > 0 &&
                 !e.second.contributions[i].has_value();
        });
    if (lacking) missing.push_back(members_[i]);
  }
  return missing;
}

std::optional<RendezvousTable::Miscounted> RendezvousTable::FindMiscounted(
    const std::vector<int32_t>& counts) const {
  for (const auto& [place, entry] : entries_) {
    if (place.phase != ReducePhase::kForward) continue;
    const bool counted = place.call < counts[static_cast<size_t>(place.layer)];
    Miscounted found{.place = place};
    for (size_t group = 0; group < entry.present.size(); ++group) {
      const bool met = entry.present[group] > 0;
      if (met == counted) continue;
      const Range range = RangeOf(group);
      for (size_t i = range.begin; i < range.end; ++i) {
        found.at_fault.push_back(members_[i]);
      }
    }
    if (!found.at_fault.empty()) return found;
  }
  return std::nullopt;
}

std::vector<std::shared_ptr<const Moments>> RendezvousTable::ForwardResults()
    const {
  std::vector<std::shared_ptr<const Moments>> results;
  if (GroupCount() != 1) return results;
  for (const auto& [place, entry] : entries_) {
    if (place.phase != ReducePhase::kForward) continue;
    COHORT_CHECK(entry.results[0] != nullptr, "a rendezvous is not complete");
    results.push_back(entry.results[0]);
  }
  return results;
}

std::vector<CallMoments> RendezvousTable::TakeForwardOf(Rank rank) {
  const size_t at = PositionOf(rank);
  std::vector<CallMoments> calls;
  for (auto& [place, entry] : entries_) {
    if (place.phase != ReducePhase::kForward) continue;
    if (!entry.contributions[at].has_value()) continue;
    calls.push_back({.layer = place.layer,
                     .call = place.call,
                     .moments = *std::move(entry.contributions[at])});
  }
  return calls;
}

}  // namespace cohort
