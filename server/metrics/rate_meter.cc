#include "server/metrics/rate_meter.h"

#include <algorithm>
#include <cstddef>

#include "absl/time/time.h"

namespace cohort {
namespace {

constexpr absl::Duration kRateWindow = absl::Seconds(10);
constexpr absl::Duration kRateResolution = absl::Milliseconds(500);

}  // namespace

bool IsPaused(const StatusView& status) {
  if (status.phase == StatusView::Phase::kTraining) return false;
  if (status.phase != StatusView::Phase::kWaiting) return true;
  return std::any_of(status.waited_for.begin(), status.waited_for.end(),
                     [&status](Rank rank) {
                       const auto at = static_cast<size_t>(rank.value());
                       return at >= status.workers.size() ||
                              status.workers[at].activity == "vacant" ||
                              status.workers[at].activity == "reconnecting" ||
                              status.workers[at].activity == "joining";
                     });
}

void RateMeter::Add(Instant now, const StatusView& status) {
  if (IsPaused(status)) {
    paused_ = true;
    return;
  }
  if (paused_) {
    before_ = per_second();
    points_.clear();
    paused_ = false;
  }
  if (!points_.empty() && now - points_.back().first < kRateResolution) return;
  points_.emplace_back(now, status.samples);
  // Keeps two points however old they are, so that slow steps have a rate too.
  while (points_.size() > 2 && now - points_.front().first > kRateWindow) {
    points_.pop_front();
  }
}

double RateMeter::per_second() const {
  if (points_.size() < 2) return before_;
  const double seconds =
      absl::ToDoubleSeconds(points_.back().first - points_.front().first);
  const auto samples =
      static_cast<double>(points_.back().second - points_.front().second);
  return seconds > 0 ? samples / seconds : 0;
}

void AddRate(const RateMeter& rate, RunFigures& figures) {
  figures.samples_per_second = rate.now_per_second();
  const StatusView& status = figures.status;
  const bool waits =
      status.phase == StatusView::Phase::kWaiting && IsPaused(status);
  if (status.ended || waits || status.samples_total <= 0 ||
      rate.per_second() <= 0) {
    return;
  }
  figures.seconds_left =
      static_cast<double>(status.samples_total - status.samples) /
      rate.per_second();
}

}  // namespace cohort
