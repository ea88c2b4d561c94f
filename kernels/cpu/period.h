#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "kernels/backend.h"

namespace cohort::kernels::cpu {

// How a tensor is cut for vectors that hold `lanes` elements.
//
// Where `inner` is long, each run of `inner` elements shares one channel and
// is vectorised along itself. Where it is short (1 for channels_last), the
// tensor is seen as flat memory whose channels repeat with a period, and every
// position of the period gets its own factors and sums. The period is
// C*inner, repeated until vectors fill it, so that 3 or 65 channels leave no
// elements over in each row.
struct Period {
  // Elements; 0 where runs are vectorised along themselves.
  int64_t length = 0;
  // Whole periods, and the elements that remain after them.
  int64_t rows = 0;
  int64_t rest = 0;
};

// Elements a run must have, in vectors, to be vectorised along itself.
inline constexpr int64_t kRunVectorsMin = 8;
// Four vectors at least hide the latency of an addition.
inline constexpr int64_t kPeriodVectorsMin = 4;
// Tables of the period stay in the first-level cache up to this length, so a
// period is not repeated beyond it.
inline constexpr int64_t kRepeatedPeriodMax = 1024;
// Beyond this length, short runs are cheaper than tables.
inline constexpr int64_t kShortRunPeriodMax = 8192;

// Requires count() > 0 and channels > 0.
inline Period ChoosePeriod(const BatchShape& shape, int64_t lanes) {
  const int64_t base = shape.channels * shape.inner;
  const bool short_runs = shape.inner < kRunVectorsMin * lanes;
  if (shape.inner != 1 && (!short_runs || base > kShortRunPeriodMax)) return {};
  const int64_t whole_vectors = base * (lanes / std::gcd(base, lanes));
  const int64_t wanted = kPeriodVectorsMin * lanes;
  const int64_t repeats = (wanted + whole_vectors - 1) / whole_vectors;
  const int64_t repeated = whole_vectors * std::max<int64_t>(repeats, 1);
  Period period;
  period.length = repeated <= kRepeatedPeriodMax ? repeated : base;
  const int64_t elements = shape.outer * base;
  period.rows = elements / period.length;
  period.rest = elements % period.length;
  return period;
}

// Calls f(position, channel) for every position of the period, ascending.
template <typename F>
void ForEachPosition(const BatchShape& shape, const Period& period, F f) {
  int64_t position = 0;
  while (position < period.length) {
    for (int64_t channel = 0; channel < shape.channels; ++channel) {
      for (int64_t i = 0; i < shape.inner; ++i) f(position++, channel);
    }
  }
}

}  // namespace cohort::kernels::cpu
