#include "server/core/automatic_shares.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/limits.h"
#include "common/step_phase.h"
#include "server/core/settings_change.h"

namespace cohort {
namespace {

// The work of the worker itself. Waiting depends on the others.
double OwnSeconds(const PhaseSeconds& phases) {
  double seconds = 0;
  for (const StepPhase phase :
       {StepPhase::kData, StepPhase::kForward, StepPhase::kBackward}) {
    const auto found = phases.find(std::string(StepPhaseName(phase)));
    if (found != phases.end()) seconds += found->second;
  }
  return seconds;
}

// Their samples as weights by rank. A rank that is not there counts as one of
// average speed.
std::vector<int64_t> WeightsOf(const std::vector<Rank>& members,
                               const std::vector<int64_t>& samples,
                               int32_t ranks) {
  // Weights have a limit, samples none.
  const int64_t most = *std::max_element(samples.begin(), samples.end());
  const int64_t unit = 1 + most / limits::kGlobalBatchMax;
  const auto weight = [unit](int64_t of) {
    return std::max<int64_t>(1, of / unit);
  };
  const int64_t sum =
      std::accumulate(samples.begin(), samples.end(), int64_t{0});
  std::vector<int64_t> weights(
      static_cast<size_t>(ranks),
      weight(sum / static_cast<int64_t>(samples.size())));
  for (size_t i = 0; i < members.size(); ++i) {
    weights[static_cast<size_t>(members[i].value())] = weight(samples[i]);
  }
  return weights;
}

}  // namespace

void AutomaticShares::Note(Rank rank, const PhaseSeconds& phases) {
  if (!phases.empty()) meter_.Note(rank, OwnSeconds(phases));
}

void AutomaticShares::Propose(Run& run, Turn& turn) {
  const RunSettings& settings = run.settings;
  const CoordinatorOptions& options = settings.options();
  if (!options.policy.shares.automatic || !options.planned.empty() ||
      !run.phase.started() || run.phase.ended() || run.phase.draining() ||
      settings.pending().has_value()) {
    return;
  }
  const std::vector<Rank> members = run.ranks.Usable();
  Conditions conditions{.policy_epoch = settings.policy_epoch()};
  for (const Rank rank : members) {
    conditions.members.push_back(run.ranks[rank].incarnation);
  }
  if (conditions != measured_) {
    measured_ = std::move(conditions);
    meter_.Reset();
    return;
  }
  if (members.size() < 2) return;
  const std::optional<std::vector<double>> seconds = meter_.Take(members);
  if (!seconds.has_value()) return;
  std::vector<int64_t> batch_sizes;
  for (const Rank rank : members) {
    batch_sizes.push_back(run.ranks[rank].batch_size);
  }
  const std::optional<std::vector<int64_t>> even = EvenShares(
      batch_sizes, options.policy.global_batch,
      run.ranks.ShareRuleOf(options.policy.shares.weights, members), *seconds);
  if (!even.has_value()) return;
  CoordinatorOptions target = options;
  target.policy.shares.weights = WeightsOf(members, *even, options.workers);
  turn.changed = true;
  RequestChange(
      run, target,
      {.reason = absl::StrFormat(
           "--shares=auto: the slowest worker computes for %.3g s in a step",
           *std::max_element(seconds->begin(), seconds->end()))},
      turn);
}

}  // namespace cohort
