#include "server/core/policy/statistics_agreement.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

// The reports of the members on one layer, in rank order.
struct Said {
  Rank rank;
  const LayerChanges* changes = nullptr;
};

std::string CallText(const TrainingCall& call) {
  return absl::StrCat(
      "momentum ",
      call.momentum.has_value() ? absl::StrCat(*call.momentum) : "None",
      ", eps ", call.epsilon,
      call.moves ? "" : ", without moving its statistics");
}

absl::Status Differs(const std::string& layer, const Said& a,
                     const std::string& text_a, const Said& b,
                     const std::string& text_b) {
  return absl::FailedPreconditionError(absl::StrCat(
      layer, ": rank ", a.rank.value(), " has ", text_a, ", rank ",
      b.rank.value(), " has ", text_b,
      "; all workers must run the same program, and one that was "
      "started again lacks what the script has changed since (take "
      "it from the version rather than from a counter)"));
}

bool IsSameCall(const TrainingCall& a, const TrainingCall& b) {
  return std::tie(a.part, a.site, a.call) == std::tie(b.part, b.site, b.call);
}

// The calls of one part of the step.
std::vector<TrainingCall> CallsOf(const LayerChanges& changes, int32_t part) {
  std::vector<TrainingCall> calls;
  std::copy_if(changes.calls.begin(), changes.calls.end(),
               std::back_inserter(calls),
               [part](const TrainingCall& call) { return call.part == part; });
  return calls;
}

// The calls of a member must be among those of the one that made most, in their
// order.
absl::Status CheckCalls(const std::string& layer, const Said& most,
                        const std::vector<TrainingCall>& whole,
                        const Said& member,
                        const std::vector<TrainingCall>& calls) {
  auto next = whole.begin();
  for (const TrainingCall& call : calls) {
    next = std::find_if(next, whole.end(), [&call](const TrainingCall& other) {
      return IsSameCall(call, other);
    });
    if (next == whole.end()) {
      return Differs(layer, most, "its calls in one order", member,
                     absl::StrCat("call ", call.call, " of '", call.site,
                                  "' at another place"));
    }
    if (!(*next == call)) {
      return Differs(layer, most, CallText(*next), member, CallText(call));
    }
    ++next;
  }
  return absl::OkStatus();
}

// The calls of all members, part by part.
absl::StatusOr<std::vector<TrainingCall>> MergeCalls(
    const std::string& layer, const std::vector<Said>& members) {
  std::set<int32_t> parts;
  for (const Said& member : members) {
    for (const TrainingCall& call : member.changes->calls) {
      parts.insert(call.part);
    }
  }
  std::vector<TrainingCall> merged;
  for (const int32_t part : parts) {
    std::vector<std::vector<TrainingCall>> calls;
    for (const Said& member : members) {
      calls.push_back(CallsOf(*member.changes, part));
    }
    const auto most =
        static_cast<size_t>(std::max_element(calls.begin(), calls.end(),
                                             [](const auto& a, const auto& b) {
                                               return a.size() < b.size();
                                             }) -
                            calls.begin());
    for (size_t i = 0; i < members.size(); ++i) {
      COHORT_RETURN_IF_ERROR(
          CheckCalls(layer, members[most], calls[most], members[i], calls[i]));
    }
    merged.insert(merged.end(), calls[most].begin(), calls[most].end());
  }
  return merged;
}

std::string ReadsText(const Said& said) {
  if (said.changes->reads.empty()) return "no evaluation pass";
  return absl::StrCat("an evaluation pass after ",
                      absl::StrJoin(said.changes->reads, " and "),
                      " training calls");
}

std::string WritesText(const Said& said) {
  return absl::StrCat("statistics written by the program at ",
                      said.changes->writes.size(), " places");
}

absl::Status CheckReads(const std::string& layer, const Said& a,
                        const Said& b) {
  const std::vector<int32_t>& first = a.changes->reads;
  const std::vector<int32_t>& second = b.changes->reads;
  const bool subset =
      std::includes(first.begin(), first.end(), second.begin(), second.end()) ||
      std::includes(second.begin(), second.end(), first.begin(), first.end());
  // For a member without calls it is unknown between which of them it read.
  const bool aside = a.changes->calls.size() != b.changes->calls.size() &&
                     !(a.changes->calls.empty() ? first : second).empty() &&
                     (a.changes->calls.empty() || b.changes->calls.empty());
  if (subset && !aside) return absl::OkStatus();
  return Differs(layer, a, ReadsText(a), b,
                 b.changes->reads.empty()
                     ? absl::StrCat(b.changes->calls.size(), " training calls")
                     : ReadsText(b));
}

absl::StatusOr<LayerChanges> AgreeOnLayer(const std::string& layer,
                                          const std::vector<Said>& members) {
  const Said& whole = *std::max_element(
      members.begin(), members.end(), [](const Said& a, const Said& b) {
        return a.changes->calls.size() < b.changes->calls.size();
      });
  LayerChanges agreed{.writes = whole.changes->writes};
  COHORT_ASSIGN_OR_RETURN(agreed.calls, MergeCalls(layer, members));
  for (const Said& member : members) {
    if (!(member.changes->writes == whole.changes->writes)) {
      return Differs(
          layer, whole, WritesText(whole), member,
          member.changes->writes.size() == whole.changes->writes.size()
              ? "other values"
              : WritesText(member));
    }
    COHORT_RETURN_IF_ERROR(CheckReads(layer, whole, member));
  }
  return agreed;
}

}  // namespace

absl::StatusOr<std::vector<LayerChanges>> AgreeOnChanges(
    const std::vector<MemberChanges>& members,
    const std::vector<BatchNormSpec>& layers) {
  std::vector<LayerChanges> agreed;
  static const LayerChanges kNothing;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    std::vector<Said> said;
    bool any = false;
    for (const MemberChanges& member : members) {
      // Workers that report nothing use the registered values.
      if (member.changes->empty()) continue;
      const auto found = std::lower_bound(
          member.changes->begin(), member.changes->end(), layer,
          [](const LayerChanges& changes, size_t wanted) {
            return static_cast<size_t>(changes.layer) < wanted;
          });
      const bool here = found != member.changes->end() &&
                        static_cast<size_t>(found->layer) == layer;
      any = any || here;
      said.push_back(
          {.rank = member.rank, .changes = here ? &*found : &kNothing});
    }
    if (!any) continue;
    COHORT_ASSIGN_OR_RETURN(LayerChanges changes,
                            AgreeOnLayer(layers[layer].name, said));
    changes.layer = static_cast<int32_t>(layer);
    if (changes.calls.empty() && changes.writes.empty()) continue;
    agreed.push_back(std::move(changes));
  }
  return agreed;
}

}  // namespace cohort
