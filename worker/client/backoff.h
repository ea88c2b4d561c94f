#pragma once

#include <algorithm>
#include <cstdint>
#include <random>

#include "absl/time/time.h"

namespace cohort {

// Growing pauses between tries: 50 ms, doubled each time up to 2 s. Each pause
// is shortened by a random part, at most half, so that the workers of a
// restarted server do not return in one burst.
class Backoff {
 public:
  explicit Backoff(uint64_t seed) : random_(seed) {}

  absl::Duration Next() {
    const absl::Duration pause = next_;
    next_ = std::min(2 * next_, kMax);
    return pause * std::uniform_real_distribution<double>(0.5, 1)(random_);
  }

  // Starts over after a success.
  void Reset() { next_ = kMin; }

 private:
  static constexpr absl::Duration kMin = absl::Milliseconds(50);
  static constexpr absl::Duration kMax = absl::Seconds(2);

  std::mt19937_64 random_;
  absl::Duration next_ = kMin;
};

}  // namespace cohort
