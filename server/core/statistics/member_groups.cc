#include "server/core/statistics/member_groups.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace cohort {

MemberGroups::MemberGroups(std::vector<Rank> ranks, int32_t group_size)
    : ranks_(std::move(ranks)),
      group_size_(group_size),
      members_(ranks_.size()) {
  CountGroups();
}

size_t MemberGroups::PositionOf(Rank rank) const {
  const auto it = std::lower_bound(ranks_.begin(), ranks_.end(), rank);
  COHORT_CHECK(it != ranks_.end() && *it == rank,
               absl::StrCat("rank ", rank.value(), " is not a member"));
  return static_cast<size_t>(it - ranks_.begin());
}

size_t MemberGroups::GroupAt(size_t position) const {
  if (group_size_ == 0) return 0;
  return position / static_cast<size_t>(group_size_);
}

MemberGroups::Range MemberGroups::RangeOf(size_t group) const {
  const size_t size =
      group_size_ == 0 ? ranks_.size() : static_cast<size_t>(group_size_);
  return {.begin = group * size,
          .end = std::min((group + 1) * size, ranks_.size())};
}

void MemberGroups::CountGroups() {
  groups_.assign(ranks_.empty() ? 0 : GroupAt(ranks_.size() - 1) + 1, {});
  rested_.clear();
  resting_ = groups_.size();
  for (size_t i = 0; i < members_.size(); ++i) {
    const size_t group = GroupAt(i);
    if (members_[i].waits > 0) ++groups_[group].waiting;
    if (members_[i].computes()) ChangeBusy(group, 1);
  }
  for (size_t group = 0; group < groups_.size(); ++group) {
    if (IsAtRest(group)) rested_.push_back(group);
  }
}

void MemberGroups::ChangeBusy(size_t group, int32_t change) {
  int32_t& busy = groups_[group].busy;
  if (busy == 0) --resting_;
  busy += change;
  if (busy > 0) return;
  ++resting_;
  rested_.push_back(group);
}

void MemberGroups::AddWaits(size_t position, int32_t change) {
  Member& member = members_[position];
  const bool waited = member.waits > 0;
  member.waits += change;
  const bool waits = member.waits > 0;
  if (waits == waited) return;
  const size_t group = GroupAt(position);
  groups_[group].waiting += waits ? 1 : -1;
  // A member that has closed its push computes neither before nor after.
  if (!member.closed) ChangeBusy(group, waits ? -1 : 1);
}

void MemberGroups::SetClosed(size_t position, bool closed) {
  Member& member = members_[position];
  if (std::exchange(member.closed, closed) == closed || member.waits > 0) {
    return;
  }
  ChangeBusy(GroupAt(position), closed ? -1 : 1);
}

std::vector<size_t> MemberGroups::Keep(const std::vector<Rank>& ranks) {
  std::vector<size_t> positions;
  positions.reserve(ranks.size());
  for (Rank rank : ranks) positions.push_back(PositionOf(rank));
  KeepAt(positions, ranks_);
  KeepAt(positions, members_);
  CountGroups();
  return positions;
}

std::vector<Rank> MemberGroups::Missing() const {
  std::vector<Rank> missing;
  for (size_t i = 0; i < members_.size(); ++i) {
    if (AnyWaits(GroupAt(i)) && members_[i].computes()) {
      missing.push_back(ranks_[i]);
    }
  }
  return missing;
}

std::vector<size_t> MemberGroups::TakeRested() {
  // A group may have come to rest, and been woken, several times since.
  std::vector<size_t> rested = std::exchange(rested_, {});
  std::sort(rested.begin(), rested.end());
  rested.erase(std::unique(rested.begin(), rested.end()), rested.end());
  std::erase_if(rested, [this](size_t group) { return !IsAtRest(group); });
  return rested;
}

}  // namespace cohort
