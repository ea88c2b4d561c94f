#include "server/core/statistics_sets.h"

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace cohort {

const StatisticsSet* FindSet(const StatisticsSets& sets, StatisticsKind kind) {
  for (const StatisticsSet& set : sets) {
    if (set.kind == kind) return &set;
  }
  return nullptr;
}

StatisticsSets StartSets(const std::vector<StatisticsKind>& kinds,
                         const std::vector<LayerStatistics>& layers) {
  StatisticsSets sets;
  for (StatisticsKind kind : kinds) {
    sets.push_back({.kind = kind, .layers = layers});
  }
  return sets;
}

StatisticsSets CarryOver(const StatisticsSets& held,
                         const std::vector<StatisticsKind>& kinds) {
  COHORT_CHECK(!held.empty(), "no statistics to start from");
  StatisticsSets sets;
  for (StatisticsKind kind : kinds) {
    const StatisticsSet* same = FindSet(held, kind);
    if (same != nullptr) {
      sets.push_back(*same);
    } else {
      sets.push_back({.kind = kind, .layers = held.front().layers});
    }
  }
  return sets;
}

std::vector<StatisticsKind> NotHeld(const StatisticsSets& held,
                                    const std::vector<StatisticsKind>& kinds) {
  std::vector<StatisticsKind> missing;
  for (StatisticsKind kind : kinds) {
    // Of kBatch nothing is kept.
    if (kind != StatisticsKind::kBatch && FindSet(held, kind) == nullptr) {
      missing.push_back(kind);
    }
  }
  return missing;
}

KeptStatistics::KeptStatistics(const PolicyOptions& policy,
                               const std::vector<BatchNormSpec>& layers) {
  for (StatisticsKind kind : policy.statistics) {
    kinds_.emplace_back(kind, layers, policy.mixture_variance);
  }
}

void KeptStatistics::ApplyStep(const std::vector<RankMoments>& ranks,
                               int64_t samples_reference, StatisticsSets& sets,
                               const CombinedMoments& combined) const {
  COHORT_CHECK(sets.size() == kinds_.size(),
               absl::StrCat("got ", sets.size(), " sets of statistics"));
  for (size_t i = 0; i < sets.size(); ++i) {
    kinds_[i].ApplyStep(ranks, samples_reference, sets[i].layers, combined);
  }
}

int64_t ChannelsOf(const std::vector<RankMoments>& moments) {
  int64_t channels = 0;
  for (const RankMoments& rank : moments) {
    for (const CallMoments& call : rank.calls) {
      channels += static_cast<int64_t>(call.moments.first.size());
    }
  }
  return channels;
}

StatisticsUpdate RunStatisticsUpdate(StatisticsUpdate job) {
  job.kept->ApplyStep(*job.moments, job.samples_reference, job.sets,
                      job.combined);
  return job;
}

void KeptStatistics::ApplyPush(const RankMoments& push, Rank chief,
                               int64_t samples_reference,
                               StatisticsSets& sets) const {
  COHORT_CHECK(sets.size() == kinds_.size(),
               absl::StrCat("got ", sets.size(), " sets of statistics"));
  for (size_t i = 0; i < sets.size(); ++i) {
    kinds_[i].ApplyPush(push, chief, samples_reference, sets[i].layers);
  }
}

}  // namespace cohort
