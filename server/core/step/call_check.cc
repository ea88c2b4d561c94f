#include "server/core/step/call_check.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "server/core/call_names.h"

namespace cohort {
namespace {

// The batch-norm calls of one member, as far as they are known.
MemberCalls CallsOf(const Round& round, Rank rank) {
  const Push& push = round.pushes[rank];
  MemberCalls calls{.rank = rank, .group = round.rendezvous.GroupOf(rank)};
  if (push.closed()) {
    calls.closed = &push.closing().batch_norm_calls;
    calls.lacks = round.rendezvous.LackedBy(rank);
  } else {
    calls.waits = round.rendezvous.WaitsOf(rank);
  }
  return calls;
}

// All members count `counts`. Those whose rendezvous contradict their own
// count.
std::optional<CallDissent> FindMiscounted(
    const Round& round, const std::vector<BatchNormSpec>& layers,
    const std::vector<int32_t>& counts) {
  const auto miscounted =
      round.rendezvous.FindMiscounted(counts, layers.size());
  if (!miscounted.has_value()) return std::nullopt;
  const auto& [place, at_fault] = *miscounted;
  const int32_t counted = CallsAt(counts, place, layers.size());
  CallDissent dissent{
      .text = absl::StrCat(
          CallNameOf(place, layers), ": rank ", at_fault.front().value(),
          " reports ", counted, " calls in step ", round.step().value(),
          place.call < counted ? ", but took no part in the rendezvous of call "
                               : ", but took part in the rendezvous of call ",
          place.call)};
  // Several members did the same: none of them can be blamed alone.
  if (at_fault.size() == 1) dissent.alone = at_fault.front();
  return dissent;
}

}  // namespace

std::optional<CallDissent> FindClosedDissent(
    const Round& round, const std::vector<BatchNormSpec>& layers, bool global) {
  if (round.pushes.AllClosed() && round.rendezvous.open_count() == 0) {
    const std::vector<int32_t>& wanted =
        round.pushes.all().begin()->second.closing().batch_norm_calls;
    const bool equal =
        std::all_of(round.pushes.all().begin(), round.pushes.all().end(),
                    [&wanted](const auto& member) {
                      return member.second.closing().batch_norm_calls == wanted;
                    });
    if (equal && !global) return std::nullopt;
    if (equal) return FindMiscounted(round, layers, wanted);
  }
  if (round.pushes.closed_count() == 0) return std::nullopt;
  std::vector<MemberCalls> members;
  for (const auto& [rank, push] : round.pushes.all()) {
    members.push_back(CallsOf(round, rank));
  }
  std::optional<CallDissent> dissent =
      FindCallDissent(members, layers, round.step(), /*crossed=*/false);
  if (dissent.has_value() || !round.pushes.AllClosed()) return dissent;
  // They agree, but an earlier incarnation of a rank made a call that its
  // replacement did not make. That call would be folded without a member.
  for (const MemberCalls& member : members) {
    if (member.lacks.empty()) continue;
    const CallPlace& place = member.lacks.front();
    return CallDissent{
        .text = absl::StrCat(CallNameOf(place, layers), ": call ", place.call,
                             " of step ", round.step().value(),
                             " is missing rank ", member.rank.value(),
                             ", which has closed its push without it")};
  }
  return std::nullopt;
}

std::optional<CallDissent> FindCrossedDissent(
    const Round& round, const std::vector<BatchNormSpec>& layers,
    absl::FunctionRef<bool(Rank)> stuck) {
  // Another group may have finished the step long since.
  const std::vector<std::vector<Rank>> groups = round.rendezvous.Groups();
  const auto crossed =
      std::find_if(groups.begin(), groups.end(), [stuck](const auto& group) {
        return std::all_of(group.begin(), group.end(), stuck);
      });
  if (crossed == groups.end()) return std::nullopt;
  std::vector<MemberCalls> members;
  for (Rank rank : *crossed) members.push_back(CallsOf(round, rank));
  return FindCallDissent(members, layers, round.step(), /*crossed=*/true);
}

}  // namespace cohort
