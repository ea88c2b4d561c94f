#include "server/core/step/call_check.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/core/statistics/call_names.h"

namespace cohort {
namespace {

using Layers = std::vector<BatchNormSpec>;

std::string RankText(Rank rank) { return absl::StrCat("rank ", rank.value()); }

std::string StepText(const Round& round) {
  return absl::StrCat("step ", round.step().value());
}

std::string TimesText(int64_t count) {
  return absl::StrCat(count, count == 1 ? " time" : " times");
}

// "[7, 8]".
std::string ExtentsText(const std::vector<int64_t>& extents) {
  return absl::StrCat("[", absl::StrJoin(extents, ", "), "]");
}

// The name of the layer that an entry of PushClosing::batch_norm_calls counts.
std::string CountedText(size_t at, const Layers& layers) {
  std::string text = layers[at % layers.size()].name;
  const size_t part = at / layers.size();
  if (part > 0) absl::StrAppend(&text, " in part ", part);
  return text;
}

// The first entry of the closing that differs from the calls that were seen.
std::optional<std::string> OtherCount(const std::vector<int32_t>& counts,
                                      const MemberCalls::Made& made,
                                      const Layers& layers) {
  for (const auto& [layer, calls] : made.calls) {
    const size_t at = static_cast<size_t>(layer.first) * layers.size() +
                      static_cast<size_t>(layer.second);
    const int32_t counted = at < counts.size() ? counts[at] : 0;
    if (counted == calls) continue;
    return absl::StrCat(counted, " calls of ", CountedText(at, layers),
                        ", but took part in ", calls);
  }
  for (size_t at = 0; at < counts.size(); ++at) {
    const std::pair<int32_t, int32_t> layer(
        static_cast<int32_t>(at / layers.size()),
        static_cast<int32_t>(at % layers.size()));
    if (counts[at] == 0 || made.calls.contains(layer)) continue;
    return absl::StrCat(counts[at], " calls of ", CountedText(at, layers),
                        ", but took part in 0");
  }
  return std::nullopt;
}

}  // namespace

std::optional<Round::Fault> FindClosingFault(const Round& round, Rank rank,
                                             const Layers& layers) {
  const PushClosing& closing = round.pushes[rank].closing();
  const MemberCalls::Made made = round.rendezvous.calls().MadeBy(rank);
  const std::string who =
      absl::StrCat(RankText(rank), " reports for ", StepText(round), " ");
  const std::optional<std::string> other =
      OtherCount(closing.batch_norm_calls, made, layers);
  if (other.has_value()) {
    return Round::Fault{.rank = rank,
                        .text = absl::StrCat(who, *other),
                        .contradicts_itself = true};
  }
  if (closing.contributions != made.contributions) {
    return Round::Fault{
        .rank = rank,
        .text = absl::StrCat(who, closing.contributions,
                             " contributions to rendezvous, but made ",
                             made.contributions),
        .contradicts_itself = true};
  }
  if (made.by_all == made.contributions) return std::nullopt;
  return Round::Fault{
      .rank = rank,
      .text = absl::StrCat(RankText(rank), " made ", made.contributions,
                           " contributions in ", StepText(round),
                           ", but the process before it made others: ",
                           made.by_all, " different ones together")};
}

Round::Fault CallAfterClosing(const Round& round, Rank rank,
                              const CallPlace& place, const Layers& layers) {
  // The present incarnation, too, if it is the one that has closed the push.
  const bool same = round.rendezvous.calls().ClosedByPresent(rank);
  return {.rank = rank,
          .text = absl::StrCat(
              RankText(rank), " took part in ", CallTextOf(place, layers),
              " of ", StepText(round),
              same ? " after it had closed its push"
                   : ", which the process before it had closed its push "
                     "without"),
          .contradicts_itself = same};
}

namespace {

// Without rendezvous, the calls are those that the closings count.
std::optional<std::string> FindUnevenClosings(const Round& round,
                                              const Layers& layers) {
  const std::map<Rank, ArrivedPush>& pushes = round.pushes.all();
  const std::vector<int32_t>& first =
      pushes.begin()->second.closing().batch_norm_calls;
  const bool equal =
      std::all_of(pushes.begin(), pushes.end(), [&first](const auto& push) {
        return push.second.closing().batch_norm_calls == first;
      });
  if (equal) return std::nullopt;
  // By part and layer: a rank that made some calls.
  std::map<size_t, std::pair<Rank, int32_t>> seen;
  for (const auto& [rank, push] : pushes) {
    const std::vector<int32_t>& counts = push.closing().batch_norm_calls;
    for (size_t at = 0; at < counts.size(); ++at) {
      if (counts[at] == 0) continue;
      const auto [other, added] =
          seen.try_emplace(at, std::pair(rank, counts[at]));
      if (added || other->second.second == counts[at]) continue;
      return absl::StrCat(
          CountedText(at, layers), ": ", RankText(other->second.first),
          " called it ", TimesText(other->second.second), " in ",
          StepText(round), ", ", RankText(rank), " ", TimesText(counts[at]));
    }
  }
  return std::nullopt;
}

std::string LayerText(const CallPlace& place, const Layers& layers) {
  std::string text = CallNameOf(place, layers);
  if (place.part > 0) absl::StrAppend(&text, " in part ", place.part);
  return text;
}

}  // namespace

std::optional<std::string> FindUnpairedCalls(const Round& round,
                                             const Layers& layers,
                                             bool global) {
  constexpr char kPaired[] =
      "; calls of a layer are paired by their number, so make equally many of "
      "them on all ranks that make any";
  if (!global) {
    std::optional<std::string> uneven = FindUnevenClosings(round, layers);
    if (uneven.has_value()) absl::StrAppend(&*uneven, kPaired);
    return uneven;
  }
  const auto uneven = round.rendezvous.calls().FindUneven();
  if (uneven.has_value()) {
    return absl::StrCat(
        LayerText(uneven->place, layers), ": ", RankText(uneven->fewer),
        " called it ", TimesText(uneven->fewer_calls), " in ", StepText(round),
        ", ", RankText(uneven->more), " ", TimesText(uneven->more_calls),
        kPaired, ", or name each call with `cohort.call(name)`");
  }
  const auto other = round.rendezvous.calls().FindOtherExtents();
  if (!other.has_value()) return std::nullopt;
  return absl::StrCat(
      LayerText(other->place, layers), ": in call ", other->place.call, " of ",
      StepText(round), " the input of ", RankText(other->rank),
      " has the extents ", ExtentsText(other->extents), ", that of ",
      RankText(other->other), " ", ExtentsText(other->other_extents),
      "; a rank left out calls in this step, so these may be different calls: "
      "name each call with `cohort.call(name)`");
}

std::string StuckText(const Round& round, size_t group, const Layers& layers) {
  std::vector<std::string> waits;
  std::vector<std::string> closed;
  bool may_evaluate = true;
  const MemberGroups& members = round.rendezvous.members();
  const MemberGroups::Range range = members.RangeOf(group);
  for (size_t i = range.begin; i < range.end; ++i) {
    const Rank rank = members.ranks()[i];
    for (const CallPlace& place : round.rendezvous.WaitsOf(rank)) {
      waits.push_back(absl::StrCat(RankText(rank), " waits in ",
                                   CallTextOf(place, layers)));
      // A sum, and a backward pass, has no such mode.
      if (place.layer < 0 || place.phase != ReducePhase::kForward) {
        may_evaluate = false;
      }
    }
    if (!round.rendezvous.Waits(rank)) closed.push_back(RankText(rank));
  }
  std::string text =
      absl::StrCat(StepText(round),
                   " cannot end, because every member of a rendezvous "
                   "must come: ",
                   absl::StrJoin(waits, ", "));
  if (!closed.empty()) {
    absl::StrAppend(&text, "; ", absl::StrJoin(closed, ", "),
                    closed.size() == 1 ? " has closed its push"
                                       : " have closed their pushes");
  }
  return absl::StrCat(text, "; make the call on all ranks",
                      may_evaluate ? ", or in evaluation mode" : "");
}

std::string LateText(const Round& round, const Layers& layers) {
  const auto late = round.rendezvous.FirstLate();
  return absl::StrCat(RankText(late->rank), " reached ",
                      CallTextOf(late->place, layers),
                      " after it was completed without it");
}

std::string ContradictionText(const Round& round, const Layers& layers) {
  const std::vector<std::vector<CallPlace>> sequences =
      round.rendezvous.calls().Sequences();
  const RankList& members = round.members();
  std::vector<Rank> ranks(members.begin(), members.end());
  // By rank: the position of each call.
  std::vector<std::map<CallPlace, size_t>> positions(sequences.size());
  for (size_t r = 0; r < sequences.size(); ++r) {
    for (size_t i = 0; i < sequences[r].size(); ++i) {
      positions[r].emplace(sequences[r][i], i);
    }
  }
  std::string text = absl::StrCat("the members of ", StepText(round),
                                  " call layers in orders that contradict "
                                  "each other");
  for (size_t a = 0; a < sequences.size(); ++a) {
    for (size_t b = a + 1; b < sequences.size(); ++b) {
      // The calls of `b` that `a` makes, too, in the order of `b`.
      const CallPlace* last = nullptr;
      for (const CallPlace& place : sequences[b]) {
        const auto at = positions[a].find(place);
        if (at == positions[a].end()) continue;
        if (last != nullptr && positions[a].at(*last) > at->second) {
          return absl::StrCat(text, ": rank ", ranks[a].value(), " makes ",
                              CallTextOf(place, layers), " before ",
                              CallTextOf(*last, layers), ", rank ",
                              ranks[b].value(),
                              " after it; call them in one order on all ranks, "
                              "or name the calls with cohort.call()");
        }
        last = &place;
      }
    }
  }
  return absl::StrCat(text, ": ", LateText(round, layers), " once more");
}

}  // namespace cohort
