#include "server/ops/watchers.h"

#include <algorithm>

namespace cohort {
namespace {

// Number of requests to remember for each page. Several watchers of one page
// request it at interleaved times, so the longest gap gives their interval.
constexpr size_t kAsksKept = 8;
// If the page does not announce its next request, fewer requests give no
// interval.
constexpr size_t kAsksMin = 3;
constexpr absl::Duration kIntervalMax = absl::Seconds(90);
// A request may be late, and its answer is slightly old.
constexpr double kLate = 1.25;
constexpr absl::Duration kAnswerAge = absl::Seconds(1);
// A request may be very late on a busy machine, and never comes if the page was
// closed.
constexpr absl::Duration kLateMost = absl::Seconds(10);

}  // namespace

void Watchers::Asked(absl::string_view page, absl::Duration again) {
  const Instant now = clock_.Now();
  MutexLock lock(mu_);
  Asks& asks = asked_[std::string(page)];
  if (!asks.at.empty() && now - asks.at.back() > kIntervalMax) asks.at.clear();
  asks.again = again;
  asks.at.push_back(now);
  if (asks.at.size() > kAsksKept) asks.at.pop_front();
}

std::optional<absl::Duration> Watchers::IntervalOf(const Asks& asks,
                                                   Instant now) {
  if (asks.at.empty()) return std::nullopt;
  if (asks.again == absl::ZeroDuration() && asks.at.size() < kAsksMin) {
    return std::nullopt;
  }
  absl::Duration interval = asks.again;
  for (size_t i = 1; i < asks.at.size(); ++i) {
    interval = std::max(interval, asks.at[i] - asks.at[i - 1]);
  }
  if (now - asks.at.back() > 2 * interval + kAnswerAge) return std::nullopt;
  return interval;
}

absl::Duration Watchers::UntilAllAsk() const {
  const Instant now = clock_.Now();
  absl::Duration longest;
  MutexLock lock(mu_);
  for (const auto& [page, asks] : asked_) {
    const std::optional<absl::Duration> interval = IntervalOf(asks, now);
    if (!interval.has_value()) continue;
    longest = std::max(longest, kLate * *interval + kAnswerAge);
  }
  return longest;
}

bool Watchers::HaveSeen(Instant since, absl::Duration patience) const {
  const absl::Duration waited = clock_.Now() - since;
  if (waited < patience || waited >= patience + kLateMost) {
    return waited >= patience;
  }
  MutexLock lock(mu_);
  return std::all_of(asked_.begin(), asked_.end(), [since](const auto& page) {
    const Asks& asks = page.second;
    return (!asks.at.empty() && asks.at.back() >= since) ||
           !IntervalOf(asks, since).has_value();
  });
}

}  // namespace cohort
