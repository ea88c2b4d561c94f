#include "server/core/policy/aggregation_policy.h"

namespace cohort {
namespace {

class SynchronousPolicy final : public AggregationPolicy {
 public:
  Decision Decide(const RoundView& round) const override {
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
};

class AsynchronousPolicy final : public AggregationPolicy {
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

std::unique_ptr<AggregationPolicy> MakeAggregationPolicy(AggregationKind kind) {
  if (kind == AggregationKind::kSync) {
    return std::make_unique<SynchronousPolicy>();
  }
  return std::make_unique<AsynchronousPolicy>();
}

}  // namespace cohort
