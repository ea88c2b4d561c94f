#include "server/core/policy/call_agreement.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/core/call_names.h"

namespace cohort {
namespace {

using Layers = std::vector<BatchNormSpec>;

// Both ascending.
std::optional<CallPlace> FirstCommon(const std::vector<CallPlace>& a,
                                     const std::vector<CallPlace>& b) {
  for (const CallPlace& place : a) {
    if (std::binary_search(b.begin(), b.end(), place)) return place;
  }
  return std::nullopt;
}

// A call that `waiting` waits in and `closed` has closed its push without.
std::optional<CallPlace> ClosedWithout(const MemberCalls& closed,
                                       const MemberCalls& waiting,
                                       size_t layers) {
  if (closed.group == waiting.group) {
    const std::optional<CallPlace> common =
        FirstCommon(waiting.waits, closed.lacks);
    if (common.has_value()) return common;
  }
  for (const CallPlace& place : waiting.waits) {
    if (place.layer >= 0 &&
        place.call >= CallsAt(*closed.closed, place, layers)) {
      return place;
    }
  }
  return std::nullopt;
}

bool Contradict(const MemberCalls& a, const MemberCalls& b, size_t layers,
                bool crossed) {
  if (a.closed != nullptr && b.closed != nullptr) {
    return *a.closed != *b.closed;
  }
  if (a.closed != nullptr) return ClosedWithout(a, b, layers).has_value();
  if (b.closed != nullptr) return ClosedWithout(b, a, layers).has_value();
  return crossed && a.group == b.group &&
         !FirstCommon(a.waits, b.waits).has_value();
}

std::string WithoutText(const MemberCalls& closed, const MemberCalls& waiting,
                        const Layers& layers, Version step) {
  const CallPlace place = *ClosedWithout(closed, waiting, layers.size());
  return absl::StrCat(
      CallNameOf(place, layers), ": rank ", waiting.rank.value(),
      " waits in call ", place.call, " of step ", step.value(), ", but rank ",
      closed.rank.value(), " has closed its push without this call");
}

// For members that wait for each other.
std::string CrossedText(const std::vector<MemberCalls>& members, size_t group,
                        const Layers& layers, Version step) {
  std::vector<std::string> waits;
  for (const MemberCalls& member : members) {
    if (member.group != group) continue;
    for (const CallPlace& place : member.waits) {
      waits.push_back(absl::StrCat("rank ", member.rank.value(), " in call ",
                                   place.call, " of ",
                                   CallNameOf(place, layers)));
    }
  }
  return absl::StrCat("the members of step ", step.value(),
                      " wait for each other: ", absl::StrJoin(waits, ", "));
}

// `a` is the one to blame, if one is.
std::string Difference(const std::vector<MemberCalls>& members,
                       const MemberCalls& a, const MemberCalls& b,
                       const Layers& layers, Version step) {
  if (a.closed == nullptr && b.closed == nullptr) {
    return CrossedText(members, a.group, layers, step);
  }
  if (b.closed == nullptr) return WithoutText(a, b, layers, step);
  if (a.closed == nullptr) return WithoutText(b, a, layers, step);
  const size_t layer = static_cast<size_t>(
      std::mismatch(a.closed->begin(), a.closed->end(), b.closed->begin())
          .first -
      a.closed->begin());
  return absl::StrCat(layers[layer % layers.size()].name, ": rank ",
                      a.rank.value(), " made ", (*a.closed)[layer],
                      " calls in step ", step.value(), ", rank ",
                      b.rank.value(), " made ", (*b.closed)[layer]);
}

}  // namespace

std::optional<CallDissent> FindCallDissent(
    const std::vector<MemberCalls>& members, const Layers& layers, Version step,
    bool crossed) {
  // By member: how many others it contradicts.
  std::vector<size_t> against(members.size());
  size_t pairs = 0;
  std::optional<std::pair<size_t, size_t>> first;
  for (size_t a = 0; a < members.size(); ++a) {
    for (size_t b = a + 1; b < members.size(); ++b) {
      if (!Contradict(members[a], members[b], layers.size(), crossed)) continue;
      if (!first.has_value()) first = {b, a};
      ++against[a];
      ++against[b];
      ++pairs;
    }
  }
  if (!first.has_value()) return std::nullopt;
  CallDissent dissent;
  // Every contradiction is one with it: the others agree.
  const auto alone = std::find(against.begin(), against.end(), pairs);
  if (pairs >= 2 && alone != against.end()) {
    const auto at = static_cast<size_t>(alone - against.begin());
    dissent.alone = members[at].rank;
    size_t other = 0;
    while (other == at ||
           !Contradict(members[at], members[other], layers.size(), crossed)) {
      ++other;
    }
    first = {at, other};
  }
  dissent.text = Difference(members, members[first->first],
                            members[first->second], layers, step);
  return dissent;
}

}  // namespace cohort
