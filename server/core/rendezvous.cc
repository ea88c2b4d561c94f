#include "server/core/rendezvous.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/byte_rope.h"
#include "common/check.h"
#include "kernels/moments_fold.h"
#include "server/core/moments_checks.h"

namespace cohort {
namespace {

uint64_t ChecksumOf(const Moments& moments) {
  const auto of = [](const auto& values) {
    const auto bytes = std::as_bytes(std::span(values));
    return Xxh3(absl::MakeConstSpan(bytes.data(), bytes.size()));
  };
  return of(std::array<uint64_t, 3>{static_cast<uint64_t>(moments.count),
                                    of(moments.first), of(moments.second)});
}

void AddTo(Moments& total, ReducePhase phase, const Moments& part) {
  if (total.first.empty()) {
    total.first.resize(part.first.size());
    total.second.resize(part.second.size());
  }
  if (phase == ReducePhase::kForward) {
    kernels::AddForward(part, total);
  } else {
    kernels::AddBackward(part, total);
  }
}

}  // namespace

MomentsFold RunMomentsFold(MomentsFold job) {
  for (const Moments& part : job.parts) {
    AddTo(job.total, job.key.phase, part);
  }
  return job;
}

RendezvousTable::RendezvousTable(std::vector<Rank> ranks,
                                 const Options& options)
    : members_(std::move(ranks)),
      options_(options),
      waits_(members_.size()),
      bytes_(members_.size()) {}

size_t RendezvousTable::PositionOf(Rank rank) const {
  const auto it = std::lower_bound(members_.begin(), members_.end(), rank);
  COHORT_CHECK(it != members_.end() && *it == rank,
               absl::StrCat("rank ", rank.value(), " is not a member"));
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
  Contribution& slot = entry.contributions[at];
  const uint64_t checksum = ChecksumOf(moments);
  if (slot.present) {
    outcome.repeated = true;
    outcome.mismatch = slot.checksum != checksum;
    outcome.result = entry.results[group];
    SetWaiting(entry, at, outcome.result == nullptr);
    if (outcome.result == nullptr) entry.since[at] = now;
    if (outcome.result != nullptr) outcome.answer.push_back(rank);
    return outcome;
  }
  const auto bytes = static_cast<int64_t>(
      (moments.first.size() + moments.second.size()) * sizeof(double));
  slot = {.present = true,
          .checksum = checksum,
          .bytes = bytes,
          .moments = std::move(moments)};
  bytes_[at] += slot.bytes;
  SetWaiting(entry, at, true);
  entry.since[at] = now;
  if (++entry.present[group] == 1) ++open_count_;
  if (options_.fixed) Extend(entry, group, now, outcome);
  return outcome;
}

void RendezvousTable::Retain(Entry& entry, size_t position,
                             Moments folded) const {
  const bool kept = entry.key.phase == ReducePhase::kForward &&
                    (options_.keep == Keep::kAll ||
                     (options_.keep == Keep::kFirst && position == 0));
  if (!kept) return;
  entry.kept.resize(members_.size());
  entry.kept[position] = std::move(folded);
}

void RendezvousTable::Extend(Entry& entry, size_t group, Instant now,
                             Outcome& outcome) {
  const Range range = RangeOf(group);
  Fold& fold = entry.folds[group];
  if (fold.running > 0) return;
  fold.end = std::max(fold.end, range.begin);
  size_t end = fold.end;
  while (end < range.end && entry.contributions[end].present) ++end;
  if (end == fold.end) return;
  const size_t channels = entry.contributions[fold.end].moments->first.size();
  const size_t ready = end - fold.end;
  // One alone costs no more than it took to receive it.
  if (ready > 1 &&
      static_cast<int64_t>(ready * channels) > options_.inline_max) {
    fold.running = ready;
    MomentsFold& job = outcome.fold.emplace(MomentsFold{
        .key = entry.key, .group = group, .total = std::move(fold.total)});
    job.parts.reserve(ready);
    for (size_t i = fold.end; i < end; ++i) {
      job.parts.push_back(
          *std::exchange(entry.contributions[i].moments, std::nullopt));
    }
    return;
  }
  for (; fold.end < end; ++fold.end) {
    Moments next =
        *std::exchange(entry.contributions[fold.end].moments, std::nullopt);
    AddTo(fold.total, entry.key.phase, next);
    Retain(entry, fold.end, std::move(next));
  }
  if (fold.end == range.end) Complete(entry, group, now, outcome);
}

RendezvousTable::Outcome RendezvousTable::Folded(MomentsFold done,
                                                 Instant now) {
  Outcome outcome;
  const auto at = entries_.find({.layer = done.key.layer,
                                 .call = done.key.call,
                                 .phase = done.key.phase});
  if (at == entries_.end()) return outcome;
  Entry& entry = at->second;
  const bool ours = entry.key.step == done.key.step &&
                    entry.key.attempt == done.key.attempt &&
                    done.group < entry.folds.size() &&
                    entry.folds[done.group].running == done.parts.size();
  if (!ours) return outcome;
  Fold& fold = entry.folds[done.group];
  fold.total = std::move(done.total);
  for (Moments& part : done.parts) {
    Retain(entry, fold.end, std::move(part));
    ++fold.end;
  }
  fold.running = 0;
  if (fold.end == RangeOf(done.group).end) {
    Complete(entry, done.group, now, outcome);
  } else {
    // More have come meanwhile.
    Extend(entry, done.group, now, outcome);
  }
  return outcome;
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
  outcome.nonfinite = !IsUsable(entry.key.phase, *outcome.result);
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
  bytes_.assign(members_.size(), 0);
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
      if (before.contributions[i].present && ++kept.present[GroupAt(at)] == 1) {
        ++open_count_;
      }
      kept.contributions.push_back(std::move(before.contributions[i]));
      bytes_[at] += kept.contributions.back().bytes;
      kept.waiting.push_back(false);
      SetWaiting(kept, at, before.waiting[i]);
      kept.since.push_back(before.since[i]);
    }
    COHORT_CHECK(kept.contributions.size() == members_.size(),
                 "a member was not a candidate");
    const bool empty = std::all_of(kept.present.begin(), kept.present.end(),
                                   [](int32_t count) { return count == 0; });
    // Only ranks that are no members were there.
    if (empty) continue;
    Entry& entry = entries_[place] = std::move(kept);
    for (size_t group = 0; group < GroupCount(); ++group) {
      Outcome outcome;
      Extend(entry, group, now, outcome);
      if (outcome.result == nullptr && !outcome.fold.has_value()) continue;
      completed.push_back({.key = entry.key, .outcome = std::move(outcome)});
    }
  }
  return completed;
}

RendezvousTable::Held RendezvousTable::HeldOf(Rank rank) const {
  const size_t at = PositionOf(rank);
  return {.waiting = waits_[at], .bytes = bytes_[at]};
}

bool RendezvousTable::Has(const ReduceKey& key, Rank rank) const {
  const auto at = entries_.find(CallPlace{key.layer, key.call, key.phase});
  return at != entries_.end() &&
         at->second.contributions[PositionOf(rank)].present;
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
    if (entry.present[group] > 0 && !entry.contributions[at].present) {
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
                 !e.second.contributions[i].present;
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

CombinedMoments RendezvousTable::ForwardResults() const {
  CombinedMoments results;
  if (GroupCount() != 1) return results;
  for (const auto& [place, entry] : entries_) {
    if (place.phase != ReducePhase::kForward) continue;
    COHORT_CHECK(entry.results[0] != nullptr, "a rendezvous is not complete");
    results.push_back({.layer = place.layer, .moments = entry.results[0]});
  }
  return results;
}

KeptForward RendezvousTable::TakeForward() {
  KeptForward kept{.members = members_};
  for (auto& [place, entry] : entries_) {
    if (entry.kept.empty()) continue;
    kept.calls.push_back({.layer = place.layer,
                          .call = place.call,
                          .moments = std::exchange(entry.kept, {})});
  }
  return kept;
}

}  // namespace cohort
