#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "common/ids.h"
#include "common/moments.h"

namespace cohort {

inline bool IsForward(const CallPlace& place) {
  return place.phase == ReducePhase::kForward;
}
// The forward call of a backward one.
inline CallPlace ForwardOf(CallPlace place) {
  place.phase = ReducePhase::kForward;
  place.path.clear();
  return place;
}
// A call of a layer of the model.
inline bool IsRegistered(const CallPlace& place) { return place.layer >= 0; }

// The batch-norm calls that each member of an attempt has contributed to, and
// by which of its incarnations: what the members' programs are compared by.
class MemberCalls {
 public:
  MemberCalls() = default;
  // `ranks` are ascending; below, a position is one in them.
  explicit MemberCalls(const std::vector<Rank>& ranks);

  // How a contribution relates to what was there.
  enum class News {
    // The member had not contributed to the call.
    kFirst,
    // Only earlier incarnations of it had.
    kFresh,
    // This incarnation had.
    kOld,
  };
  News Note(const CallPlace& place, size_t position,
            const std::vector<int64_t>& extents);
  // The present incarnation has closed its push.
  void NoteClosed(size_t position);
  // The present incarnation is over.
  void NoteLost(size_t position);
  // Forgets the others. `positions` are ascending.
  void Keep(const std::vector<size_t>& positions);

  bool Has(const CallPlace& place, Rank rank) const;
  // What a rank contributed to in this attempt.
  struct Made {
    // By all incarnations of the rank.
    int64_t by_all = 0;
    // By the present one, and its registered forward calls by (part, layer).
    int64_t contributions = 0;
    std::map<std::pair<int32_t, int32_t>, int32_t> calls;
  };
  Made MadeBy(Rank rank) const;
  bool ClosedByPresent(Rank rank) const;
  // The calls of each member, in the order of its first contributions; members
  // in rank order.
  std::vector<std::vector<CallPlace>> Sequences() const;

  // Members that made different numbers of calls of one registered layer.
  struct Uneven {
    CallPlace place;
    Rank fewer;
    int32_t fewer_calls = 0;
    Rank more;
    int32_t more_calls = 0;
  };
  // The first registered (part, layer, site) that some members called, but not
  // as often as others. Calls are paired by number, so members may leave out
  // all calls or none.
  std::optional<Uneven> FindUneven() const;
  // Members whose inputs of one call have different extents.
  struct OtherExtents {
    CallPlace place;
    Rank rank;
    std::vector<int64_t> extents;
    Rank other;
    std::vector<int64_t> other_extents;
  };
  // The first one of a layer that is called more than once, if some member
  // left out some call: the calls may be paired wrongly. Calls with a name are
  // not compared.
  std::optional<OtherExtents> FindOtherExtents() const;

 private:
  // A member's part in one call.
  struct Part {
    // The last incarnation that contributed, by Member::incarnation.
    int32_t incarnation = -1;
    // Index into Call::extents.
    int32_t extents = 0;
    bool made() const { return incarnation >= 0; }
  };
  struct Call {
    // By position.
    std::vector<Part> parts;
    size_t made_count = 0;
    // The different extents of the inputs.
    std::vector<std::vector<int64_t>> extents;
  };
  using Calls = std::map<CallPlace, Call>;
  struct Member {
    Rank rank;
    // In the order of first contributions.
    std::vector<const Calls::value_type*> made;
    // Numbers the incarnations of this attempt, and how many contributions the
    // present one has made.
    int32_t incarnation = 0;
    int64_t made_by_it = 0;
    // The incarnation that closed the push.
    int32_t closed_by = -1;
  };

  size_t PositionOf(Rank rank) const;
  // Some members left out a registered call that others made.
  bool AnySkipped() const;
  // How many of the calls of (part, layer, site) the member has made.
  int32_t CallsOf(const CallPlace& place, size_t position) const;

  // By position.
  std::vector<Member> members_;
  Calls calls_;
};

}  // namespace cohort
