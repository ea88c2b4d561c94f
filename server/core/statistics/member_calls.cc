#include "server/core/statistics/member_calls.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "server/core/statistics/member_groups.h"

namespace cohort {
namespace {

bool IsRegisteredForward(const CallPlace& place) {
  return IsForward(place) && IsRegistered(place);
}

bool IsOfOneLayer(const CallPlace& a, const CallPlace& b) {
  return std::tie(a.part, a.layer, a.site) == std::tie(b.part, b.layer, b.site);
}

}  // namespace

MemberCalls::MemberCalls(const std::vector<Rank>& ranks) {
  for (Rank rank : ranks) members_.push_back({.rank = rank});
}

size_t MemberCalls::PositionOf(Rank rank) const {
  const auto at = std::ranges::lower_bound(members_, rank, {}, &Member::rank);
  COHORT_CHECK(at != members_.end() && at->rank == rank,
               absl::StrCat("rank ", rank.value(), " is not a member"));
  return static_cast<size_t>(at - members_.begin());
}

MemberCalls::News MemberCalls::Note(const CallPlace& place, size_t position,
                                    const std::vector<int64_t>& extents) {
  Calls::value_type& made = *calls_.try_emplace(place).first;
  Call& call = made.second;
  call.parts.resize(members_.size());
  Part& part = call.parts[position];
  Member& member = members_[position];
  if (part.incarnation == member.incarnation) return News::kOld;
  const bool first = !part.made();
  part.incarnation = member.incarnation;
  ++member.made_by_it;
  if (!first) return News::kFresh;
  member.made.push_back(&made);
  ++call.made_count;
  // All are equal, or very few differ.
  const auto at = std::find(call.extents.begin(), call.extents.end(), extents);
  part.extents = static_cast<int32_t>(at - call.extents.begin());
  if (at == call.extents.end()) call.extents.push_back(extents);
  return News::kFirst;
}

void MemberCalls::NoteClosed(size_t position) {
  members_[position].closed_by = members_[position].incarnation;
}

void MemberCalls::NoteLost(size_t position) {
  ++members_[position].incarnation;
  members_[position].made_by_it = 0;
}

void MemberCalls::Keep(const std::vector<size_t>& positions) {
  KeepAt(positions, members_);
  for (auto& [place, call] : calls_) {
    KeepAt(positions, call.parts);
    call.made_count = static_cast<size_t>(
        std::count_if(call.parts.begin(), call.parts.end(),
                      [](const Part& part) { return part.made(); }));
  }
  std::erase_if(calls_,
                [](const auto& at) { return at.second.made_count == 0; });
}

bool MemberCalls::Has(const CallPlace& place, Rank rank) const {
  const auto at = calls_.find(place);
  return at != calls_.end() && at->second.parts[PositionOf(rank)].made();
}

MemberCalls::Made MemberCalls::MadeBy(Rank rank) const {
  const size_t at = PositionOf(rank);
  const Member& member = members_[at];
  Made made{.by_all = static_cast<int64_t>(member.made.size()),
            .contributions = member.made_by_it};
  for (const Calls::value_type* of : member.made) {
    const auto& [place, call] = *of;
    if (call.parts[at].incarnation == member.incarnation &&
        IsRegisteredForward(place)) {
      ++made.calls[{place.part, place.layer}];
    }
  }
  return made;
}

bool MemberCalls::ClosedByPresent(Rank rank) const {
  const Member& member = members_[PositionOf(rank)];
  return member.closed_by == member.incarnation;
}

std::vector<std::vector<CallPlace>> MemberCalls::Sequences() const {
  std::vector<std::vector<CallPlace>> sequences;
  for (const Member& member : members_) {
    std::vector<CallPlace>& sequence = sequences.emplace_back();
    for (const Calls::value_type* of : member.made) {
      sequence.push_back(of->first);
    }
  }
  return sequences;
}

bool MemberCalls::AnySkipped() const {
  return std::any_of(calls_.begin(), calls_.end(), [this](const auto& at) {
    return IsRegisteredForward(at.first) &&
           at.second.made_count < members_.size();
  });
}

int32_t MemberCalls::CallsOf(const CallPlace& place, size_t position) const {
  return static_cast<int32_t>(
      std::count_if(calls_.begin(), calls_.end(), [&](const auto& at) {
        return IsForward(at.first) && IsOfOneLayer(at.first, place) &&
               at.second.parts[position].made();
      }));
}

std::optional<MemberCalls::Uneven> MemberCalls::FindUneven() const {
  if (!AnySkipped()) return std::nullopt;
  // The first call of the present (part, layer, site).
  const Calls::value_type* first = nullptr;
  for (const Calls::value_type& at : calls_) {
    const auto& [place, call] = at;
    if (!IsRegisteredForward(place)) continue;
    if (first == nullptr || !IsOfOneLayer(first->first, place)) {
      first = &at;
      continue;
    }
    std::optional<size_t> fewer;
    std::optional<size_t> more;
    for (size_t i = 0; i < members_.size(); ++i) {
      const bool here = call.parts[i].made();
      if (here && !more.has_value()) more = i;
      if (first->second.parts[i].made() && !here && !fewer.has_value()) {
        fewer = i;
      }
    }
    if (!fewer.has_value() || !more.has_value()) continue;
    return Uneven{.place = place,
                  .fewer = members_[*fewer].rank,
                  .fewer_calls = CallsOf(place, *fewer),
                  .more = members_[*more].rank,
                  .more_calls = CallsOf(place, *more)};
  }
  return std::nullopt;
}

std::optional<MemberCalls::OtherExtents> MemberCalls::FindOtherExtents() const {
  if (!AnySkipped()) return std::nullopt;
  for (const auto& [place, call] : calls_) {
    if (!IsRegisteredForward(place) || !place.site.empty() ||
        call.extents.size() < 2) {
      continue;
    }
    CallPlace second = place;
    second.call = 1;
    if (!calls_.contains(second)) continue;
    std::optional<size_t> first;
    for (size_t i = 0; i < members_.size(); ++i) {
      const Part& part = call.parts[i];
      if (!part.made()) continue;
      if (!first.has_value()) first = i;
      const int32_t wanted = call.parts[*first].extents;
      if (part.extents == wanted) continue;
      return OtherExtents{
          .place = place,
          .rank = members_[*first].rank,
          .extents = call.extents[static_cast<size_t>(wanted)],
          .other = members_[i].rank,
          .other_extents = call.extents[static_cast<size_t>(part.extents)]};
    }
  }
  return std::nullopt;
}

}  // namespace cohort
