#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/ids.h"

namespace cohort {

// The members of one attempt, and which of them compute. They may meet in
// groups: consecutive ones, each group by itself, the last of as many as are
// left. A group is at rest if none of its members computes: each waits for an
// answer or has closed its push, and no fold is running. Then no contribution
// can come.
class MemberGroups {
 public:
  // Positions of one group's members: begin to end - 1.
  struct Range {
    size_t begin = 0;
    size_t end = 0;
  };

  MemberGroups() = default;
  // `ranks` are ascending. `group_size`: members of a group; 0: all are one
  // group.
  MemberGroups(std::vector<Rank> ranks, int32_t group_size);

  // By position.
  const std::vector<Rank>& ranks() const { return ranks_; }
  // `rank` must be a member.
  size_t PositionOf(Rank rank) const;
  // The number of groups.
  size_t count() const { return groups_.size(); }
  size_t GroupAt(size_t position) const;
  Range RangeOf(size_t group) const;

  // `position` waits in so many rendezvous more.
  void AddWaits(size_t position, int32_t change);
  void SetClosed(size_t position, bool closed);
  void BeginFold(size_t group) { ChangeBusy(group, 1); }
  void EndFold(size_t group) { ChangeBusy(group, -1); }
  // From now on `ranks`, some of the present ones, are the members. Returns
  // their positions before. No fold may be running.
  std::vector<size_t> Keep(const std::vector<Rank>& ranks);

  // In how many rendezvous it waits.
  int32_t waits(size_t position) const { return members_[position].waits; }
  // Some member of the group waits.
  bool AnyWaits(size_t group) const { return groups_[group].waiting > 0; }
  // Members that compute while others of their group wait.
  std::vector<Rank> Missing() const;
  bool IsAtRest(size_t group) const { return groups_[group].busy == 0; }
  // All groups are. O(1).
  bool AllAtRest() const { return resting_ == groups_.size(); }
  // The groups that have come to rest since the last call, and are at rest.
  std::vector<size_t> TakeRested();

 private:
  struct Member {
    int32_t waits = 0;
    bool closed = false;
    bool computes() const { return waits == 0 && !closed; }
  };
  struct Group {
    // Members that compute, and folds that are running.
    int32_t busy = 0;
    // Members that wait.
    int32_t waiting = 0;
  };

  void ChangeBusy(size_t group, int32_t change);
  // Sets the counts of all groups from the members.
  void CountGroups();

  std::vector<Rank> ranks_;
  int32_t group_size_ = 0;
  // By position.
  std::vector<Member> members_;
  std::vector<Group> groups_;
  // Groups that have come to rest since they were asked for.
  std::vector<size_t> rested_;
  // How many groups are at rest.
  size_t resting_ = 0;
};

// Keeps the elements at `positions`, which are ascending.
template <typename T>
void KeepAt(const std::vector<size_t>& positions, std::vector<T>& all) {
  for (size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] != i) all[i] = std::move(all[positions[i]]);
  }
  all.erase(all.begin() + static_cast<ptrdiff_t>(positions.size()), all.end());
}

}  // namespace cohort
