#include "server/core/ledger/share_proposal.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "common/limits.h"

namespace cohort {

void SpeedMeter::Note(Rank rank, double seconds) {
  Reports& reports = reports_[rank];
  if (!std::exchange(reports.ignored_first, true)) return;
  if (reports.seconds.size() < kReports) reports.seconds.push_back(seconds);
}

std::optional<std::vector<double>> SpeedMeter::Take(
    const std::vector<Rank>& ranks) {
  std::vector<double> quartiles;
  for (const Rank rank : ranks) {
    std::vector<double>& seconds = reports_[rank].seconds;
    if (seconds.size() < kReports) return std::nullopt;
    const auto quartile = seconds.begin() + kReports / 4;
    std::nth_element(seconds.begin(), quartile, seconds.end());
    quartiles.push_back(*quartile);
  }
  for (const Rank rank : ranks) reports_[rank].seconds.clear();
  return quartiles;
}

std::optional<std::vector<int64_t>> EvenShares(
    const std::vector<int64_t>& batch_sizes, int64_t global_batch,
    const ShareRule& now, const std::vector<double>& seconds) {
  const std::vector<int64_t> present =
      ShareStep(batch_sizes, global_batch, now).samples;
  std::vector<double> speeds;
  double fastest = 0;
  double slowest_seconds = 0;
  for (size_t i = 0; i < present.size(); ++i) {
    if (present[i] == 0 || !(seconds[i] > 0)) return std::nullopt;
    speeds.push_back(static_cast<double>(present[i]) / seconds[i]);
    fastest = std::max(fastest, speeds[i]);
    slowest_seconds = std::max(slowest_seconds, seconds[i]);
  }
  ShareRule even{.batch_sizes_max = now.batch_sizes_max};
  for (const double speed : speeds) {
    const double weight =
        static_cast<double>(limits::kGlobalBatchMax) * speed / fastest;
    even.weights.push_back(
        std::max<int64_t>(1, static_cast<int64_t>(std::round(weight))));
  }
  std::vector<int64_t> proposed =
      ShareStep(batch_sizes, global_batch, even).samples;
  double longest = 0;
  for (size_t i = 0; i < proposed.size(); ++i) {
    longest = std::max(longest, static_cast<double>(proposed[i]) / speeds[i]);
  }
  if (longest > (1 - kShareGain) * slowest_seconds) return std::nullopt;
  return proposed;
}

}  // namespace cohort
