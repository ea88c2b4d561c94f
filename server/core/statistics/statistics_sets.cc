#include "server/core/statistics/statistics_sets.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "server/core/policy/statistics_agreement.h"
#include "server/core/statistics/moments_checks.h"

namespace cohort {

std::vector<StatisticsKind> KindsKept(const PolicyOptions& policy,
                                      const OptimizerOptions& optimizer) {
  std::vector<StatisticsKind> kinds = policy.statistics;
  if (optimizer.ema_decay > 0) kinds.push_back(StatisticsKind::kAverage);
  return kinds;
}

double AverageDecay(double ema_decay, Version version) {
  const auto n = static_cast<double>(version.value());
  return std::min(ema_decay, (1 + n) / (10 + n));
}

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
    // kBatch has no kept statistics.
    if (kind != StatisticsKind::kBatch && FindSet(held, kind) == nullptr) {
      missing.push_back(kind);
    }
  }
  return missing;
}

std::optional<int32_t> FirstOverflow(const StatisticsSets& sets) {
  for (const StatisticsSet& set : sets) {
    const std::optional<int32_t> layer = FirstOverflow(set.layers);
    if (layer.has_value()) return layer;
  }
  return std::nullopt;
}

KeptStatistics::KeptStatistics(const PolicyOptions& policy, double ema_decay,
                               const std::vector<BatchNormSpec>& layers)
    : ema_decay_(ema_decay) {
  for (StatisticsKind kind : policy.statistics) {
    kinds_.emplace_back(kind, layers, policy.mixture_variance);
  }
}

void KeptStatistics::CheckCount(const StatisticsSets& sets) const {
  COHORT_CHECK(sets.size() == kinds_.size() + (ema_decay_ > 0 ? 1 : 0),
               absl::StrCat("got ", sets.size(), " sets of statistics"));
}

void KeptStatistics::ApplyStep(const std::vector<RankMoments>& ranks,
                               int64_t samples_reference, Version base,
                               StatisticsSets& sets,
                               const CombinedMoments& combined,
                               const std::vector<LayerChanges>& changes) const {
  CheckCount(sets);
  for (size_t i = 0; i < kinds_.size(); ++i) {
    kinds_[i].ApplyStep(ranks, samples_reference, sets[i].layers, combined,
                        changes);
  }
  UpdateAverage(base, sets);
}

int64_t ChannelsOf(const StatisticsUpdate& job) {
  int64_t channels = 0;
  for (const RankMoments& rank : *job.moments) {
    for (const CallMoments& call : rank.calls) {
      channels += static_cast<int64_t>(call.moments.first.size());
    }
    // Comparing what happened to a layer takes about as long as a few channels.
    channels += 16 * static_cast<int64_t>(rank.changes.size());
  }
  for (const KeptForward::Call& call : job.forward.calls) {
    for (const std::optional<Moments>& moments : call.moments) {
      if (!moments.has_value()) continue;
      // Members have equally many.
      channels += static_cast<int64_t>(moments->first.size()) *
                  static_cast<int64_t>(call.moments.size());
      break;
    }
  }
  return channels;
}

namespace {

// `moments` with the calls that rendezvous have kept.
std::vector<RankMoments> WithForward(std::vector<RankMoments> moments,
                                     KeptForward forward) {
  const std::vector<Rank> members = forward.members;
  std::vector<std::vector<CallMoments>> calls =
      MomentsByMember(std::move(forward));
  for (RankMoments& rank : moments) {
    const auto at = std::lower_bound(members.begin(), members.end(), rank.rank);
    if (at == members.end() || *at != rank.rank) continue;
    rank.calls = std::move(calls[static_cast<size_t>(at - members.begin())]);
  }
  return moments;
}

// One value a channel has no variance; torch refuses it, too. Where members do
// not meet, each of them sees that itself.
absl::Status CheckValues(const StatisticsUpdate& job) {
  for (const CombinedCall& call : job.combined) {
    if (call.moments->count != 1) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        (*job.layers)[static_cast<size_t>(call.place.layer)].name, ": step ",
        job.step.value(),
        " has one value a channel, want more than 1 when training; use larger "
        "batches, or, for the last step of an epoch, another batch size or "
        "data set"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<LayerChanges>> ChangesOf(
    const StatisticsUpdate& job) {
  COHORT_RETURN_IF_ERROR(CheckValues(job));
  std::vector<MemberChanges> members;
  for (const RankMoments& rank : *job.moments) {
    members.push_back({.rank = rank.rank, .changes = &rank.changes});
  }
  return AgreeOnChanges(members, *job.layers);
}

}  // namespace

StatisticsUpdate RunStatisticsUpdate(StatisticsUpdate job) {
  const absl::StatusOr<std::vector<LayerChanges>> changes = ChangesOf(job);
  if (!changes.ok()) {
    job.status = changes.status();
    return job;
  }
  if (!job.forward.calls.empty()) {
    job.moments = std::make_shared<const std::vector<RankMoments>>(
        WithForward(*job.moments, std::exchange(job.forward, {})));
  }
  job.kept->ApplyStep(*job.moments, job.samples_reference, job.step, job.sets,
                      job.combined, *changes);
  job.overflow = FirstOverflow(job.sets);
  return job;
}

void KeptStatistics::ApplyPush(const RankMoments& push, Rank chief,
                               int64_t samples_reference, Version base,
                               StatisticsSets& sets) const {
  CheckCount(sets);
  for (size_t i = 0; i < kinds_.size(); ++i) {
    kinds_[i].ApplyPush(push, chief, samples_reference, sets[i].layers);
  }
  UpdateAverage(base, sets);
}

void KeptStatistics::UpdateAverage(Version base, StatisticsSets& sets) const {
  if (ema_decay_ == 0) return;
  const double gain = 1 - AverageDecay(ema_decay_, base);
  const auto follow = [gain](std::vector<double>& average,
                             const std::vector<double>& now) {
    for (size_t c = 0; c < average.size(); ++c) {
      average[c] += gain * (now[c] - average[c]);
    }
  };
  for (size_t i = 0; i < sets.front().layers.size(); ++i) {
    const LayerStatistics& now = sets.front().layers[i];
    LayerStatistics& average = sets.back().layers[i];
    follow(average.mean, now.mean);
    follow(average.variance, now.variance);
    average.num_batches_tracked = now.num_batches_tracked;
  }
}

}  // namespace cohort
