#include "server/core/policy/aggregation_policy.h"

#include <algorithm>

namespace cohort {
namespace {

class SynchronousPolicy final : public AggregationPolicy {
 public:
  explicit SynchronousPolicy(int32_t pushes_min) : pushes_min_(pushes_min) {}

  Decision Decide(const RoundView& round) const override {
    return round.fixed ? Complete(round) : ChooseMembers(round);
  }

 private:
  static Decision Complete(const RoundView& round) {
    Decision decision;
    for (const PushView& push : round.pushes) {
      (push.complete ? decision.members : decision.waiting_for)
          .push_back(push.rank);
    }
    if (!round.pushes.empty() && decision.waiting_for.empty()) {
      decision.action = Decision::Action::kApply;
    } else {
      decision.members.clear();
    }
    return decision;
  }

  // Fewer ranks than K are left after a loss: then all of them.
  Decision ChooseMembers(const RoundView& round) const {
    const size_t wanted =
        std::min(static_cast<size_t>(pushes_min_), round.pushes.size());
    const std::vector<Rank>& claims = round.claims;
    Decision decision;
    if (wanted > 0 && claims.size() >= wanted) {
      decision.action = Decision::Action::kFix;
      decision.members.assign(claims.begin(),
                              claims.begin() + static_cast<ptrdiff_t>(wanted));
      std::sort(decision.members.begin(), decision.members.end());
      return decision;
    }
    for (const PushView& push : round.pushes) {
      if (std::find(claims.begin(), claims.end(), push.rank) == claims.end()) {
        decision.waiting_for.push_back(push.rank);
      }
    }
    return decision;
  }

  const int32_t pushes_min_;
};

class OneByOnePolicy final : public AggregationPolicy {
 public:
  Decision Decide(const RoundView& round) const override {
    for (const PushView& push : round.pushes) {
      if (push.complete) {
        return {.action = Decision::Action::kApply, .members = {push.rank}};
      }
    }
    return {};
  }
};

}  // namespace

std::unique_ptr<AggregationPolicy> MakeAggregationPolicy(
    const PolicyOptions& policy) {
  if (policy.aggregation == AggregationKind::kSync) {
    return std::make_unique<SynchronousPolicy>(policy.pushes_min);
  }
  return std::make_unique<OneByOnePolicy>();
}

}  // namespace cohort
