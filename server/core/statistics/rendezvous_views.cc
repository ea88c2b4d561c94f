// Queries of a table of rendezvous: its members, their waits and results.

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/check.h"
#include "server/core/statistics/rendezvous.h"

namespace cohort {

// ---- what members have contributed

RendezvousTable::Held RendezvousTable::HeldOf(Rank rank) const {
  const size_t at = PositionOf(rank);
  return {.waiting = waits_[at], .bytes = states_[at].bytes};
}

bool RendezvousTable::Has(const CallPlace& place, Rank rank) const {
  const auto at = entries_.find(place);
  return at != entries_.end() &&
         at->second.contributions[PositionOf(rank)].incarnation >= 0;
}

bool RendezvousTable::IsAnswered(const CallPlace& place, Rank rank) const {
  const auto at = entries_.find(place);
  if (at == entries_.end()) return false;
  const size_t position = PositionOf(rank);
  return at->second.contributions[position].present &&
         at->second.meetings[GroupAt(position)].result != nullptr;
}

std::optional<size_t> RendezvousTable::ChannelsOf(
    const CallPlace& place) const {
  const auto at = entries_.find(place);
  if (at == entries_.end()) return std::nullopt;
  return at->second.channels;
}

RendezvousTable::Made RendezvousTable::MadeBy(Rank rank) const {
  const size_t at = PositionOf(rank);
  const Member& member = states_[at];
  Made made{.by_all = static_cast<int64_t>(member.made.size()),
            .contributions = member.made_by_it};
  for (const Entry* entry : member.made) {
    const CallPlace& place = entry->key.place;
    if (entry->contributions[at].incarnation == member.incarnation &&
        IsForward(place) && IsRegistered(place)) {
      ++made.calls[{place.part, place.layer}];
    }
  }
  return made;
}

bool RendezvousTable::ClosedByPresent(Rank rank) const {
  const Member& member = states_[PositionOf(rank)];
  return member.closed && member.closed_by == member.incarnation;
}

bool RendezvousTable::AnySkipped() const {
  return std::any_of(entries_.begin(), entries_.end(), [this](const auto& at) {
    const auto& [place, entry] = at;
    return IsForward(place) && IsRegistered(place) &&
           entry.present < members_.size();
  });
}

int32_t RendezvousTable::CallsOf(const CallPlace& place,
                                 size_t position) const {
  int32_t calls = 0;
  for (const auto& [other, entry] : entries_) {
    if (IsForward(other) &&
        std::tie(other.part, other.layer, other.site) ==
            std::tie(place.part, place.layer, place.site) &&
        entry.contributions[position].present) {
      ++calls;
    }
  }
  return calls;
}

std::optional<RendezvousTable::Uneven> RendezvousTable::FindUneven() const {
  if (!AnySkipped()) return std::nullopt;
  // The first call of the present (part, layer, site).
  const Entry* first = nullptr;
  for (const auto& [place, entry] : entries_) {
    if (!IsForward(place) || !IsRegistered(place)) continue;
    const bool same = first != nullptr &&
                      std::tie(first->key.place.part, first->key.place.layer,
                               first->key.place.site) ==
                          std::tie(place.part, place.layer, place.site);
    if (!same) {
      first = &entry;
      continue;
    }
    std::optional<size_t> fewer;
    std::optional<size_t> more;
    for (size_t i = 0; i < members_.size(); ++i) {
      const bool here = entry.contributions[i].present;
      if (here && !more.has_value()) more = i;
      if (first->contributions[i].present && !here && !fewer.has_value()) {
        fewer = i;
      }
    }
    if (!fewer.has_value() || !more.has_value()) continue;
    return Uneven{.place = place,
                  .fewer = members_[*fewer],
                  .fewer_calls = CallsOf(place, *fewer),
                  .more = members_[*more],
                  .more_calls = CallsOf(place, *more)};
  }
  return std::nullopt;
}

std::optional<RendezvousTable::OtherExtents> RendezvousTable::FindOtherExtents()
    const {
  if (!AnySkipped()) return std::nullopt;
  for (const auto& [place, entry] : entries_) {
    if (!IsForward(place) || !IsRegistered(place) || !place.site.empty() ||
        entry.extents.size() < 2) {
      continue;
    }
    CallPlace second = place;
    second.call = 1;
    if (!entries_.contains(second)) continue;
    std::optional<size_t> first;
    for (size_t i = 0; i < members_.size(); ++i) {
      const Contribution& part = entry.contributions[i];
      if (!part.present) continue;
      if (!first.has_value()) first = i;
      const int32_t wanted = entry.contributions[*first].extents;
      if (part.extents == wanted) continue;
      return OtherExtents{
          .place = place,
          .rank = members_[*first],
          .extents = entry.extents[static_cast<size_t>(wanted)],
          .other = members_[i],
          .other_extents = entry.extents[static_cast<size_t>(part.extents)]};
    }
  }
  return std::nullopt;
}

// ---- waits

std::vector<CallPlace> RendezvousTable::WaitsOf(Rank rank) const {
  const size_t at = PositionOf(rank);
  std::vector<CallPlace> places;
  if (waits_[at] == 0) return places;
  for (const auto& [place, entry] : entries_) {
    if (entry.waiting[at]) places.push_back(place);
  }
  return places;
}

const CallPlace* RendezvousTable::WaitOf(Rank rank) const {
  const size_t at = PositionOf(rank);
  if (waits_[at] == 0) return nullptr;
  const Entry& last = *states_[at].last;
  if (last.waiting[at]) return &last.key.place;
  for (const auto& [place, entry] : entries_) {
    if (entry.waiting[at]) return &place;
  }
  return nullptr;
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
    if (groups_[GroupAt(i)].waiting > 0 && waits_[i] == 0 &&
        !states_[i].closed) {
      missing.push_back(members_[i]);
    }
  }
  return missing;
}

// ---- results

CombinedMoments RendezvousTable::ForwardResults() const {
  CombinedMoments results;
  if (GroupCount() != 1) return results;
  for (const auto& [place, entry] : entries_) {
    if (!IsForward(place) || !IsRegistered(place)) continue;
    COHORT_CHECK(entry.meetings[0].result != nullptr,
                 "a rendezvous is not complete");
    results.push_back({.place = place, .moments = entry.meetings[0].result});
  }
  return results;
}

KeptForward RendezvousTable::TakeForward() {
  KeptForward kept{.members = members_};
  // By layer. The call of an entry is its number among those of its layer, in
  // all parts and with all names, so that members line up.
  std::map<int32_t, int32_t> calls;
  for (auto& [place, entry] : entries_) {
    if (!IsForward(place) || !IsRegistered(place)) continue;
    const int32_t call = calls[place.layer]++;
    if (entry.kept.empty()) continue;
    kept.calls.push_back({.layer = place.layer,
                          .call = call,
                          .moments = std::exchange(entry.kept, {})});
  }
  std::stable_sort(kept.calls.begin(), kept.calls.end(),
                   [](const KeptForward::Call& a, const KeptForward::Call& b) {
                     return a.layer < b.layer;
                   });
  return kept;
}

}  // namespace cohort
