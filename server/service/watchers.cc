#include "server/service/watchers.h"

#include <algorithm>

namespace cohort {
namespace {

// Asks of a page that are remembered. Several who look at the same page ask
// between each other, so the longest of the times between tells their interval.
constexpr size_t kAsksKept = 8;
constexpr size_t kAsksMin = 3;
constexpr absl::Duration kIntervalMax = absl::Seconds(90);
// A request may be late, and what it is answered with is a moment old.
constexpr double kLate = 1.25;
constexpr absl::Duration kAnswerAge = absl::Seconds(1);

}  // namespace

void Watchers::Asked(absl::string_view page) {
  const Instant now = clock_.Now();
  MutexLock lock(mu_);
  std::deque<Instant>& asks = asked_[std::string(page)];
  if (!asks.empty() && now - asks.back() > kIntervalMax) asks.clear();
  asks.push_back(now);
  if (asks.size() > kAsksKept) asks.pop_front();
}

absl::Duration Watchers::UntilAllAsk() const {
  const Instant now = clock_.Now();
  absl::Duration longest;
  MutexLock lock(mu_);
  for (const auto& [page, asks] : asked_) {
    if (asks.size() < kAsksMin) continue;
    absl::Duration interval;
    for (size_t i = 1; i < asks.size(); ++i) {
      interval = std::max(interval, asks[i] - asks[i - 1]);
    }
    if (now - asks.back() > 2 * interval + kAnswerAge) continue;
    longest = std::max(longest, kLate * interval + kAnswerAge);
  }
  return longest;
}

}  // namespace cohort
