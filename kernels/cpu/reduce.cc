// Per-channel sums: moments and the reduction of the backward pass.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/period.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/reduce.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/lanes_inl.h"

HWY_BEFORE_NAMESPACE();
namespace cohort::kernels::cpu {
namespace HWY_NAMESPACE {

// What is summed over a channel's elements, with d = x - center:
//   forward   a = sum d,   b = sum d*d
//   backward  a = sum dy,  b = sum dy*d
// All float64. `dy` is read by the backward pass only.
template <typename T>
struct ReduceInput {
  BatchShape shape;
  const T* x = nullptr;
  const T* dy = nullptr;
  // [channels].
  const double* center = nullptr;
};

// [channels] each; zero on entry.
struct ReduceOutput {
  double* a = nullptr;
  double* b = nullptr;
};

template <bool kBackward, typename T>
HWY_INLINE void AddVector(const ReduceInput<T>& in, int64_t i, Wide center,
                          Wide& a, Wide& b) {
  const Wide d = hn::Sub(LoadWide(in.x + i), center);
  const Wide g = kBackward ? LoadWide(in.dy + i) : d;
  a = hn::Add(a, g);
  b = hn::MulAdd(g, d, b);
}

template <bool kBackward, typename T>
HWY_INLINE void AddElement(const ReduceInput<T>& in, int64_t i, double center,
                           double& a, double& b) {
  const double d = static_cast<double>(in.x[i]) - center;
  const double g = kBackward ? static_cast<double>(in.dy[i]) : d;
  a += g;
  b += g * d;
}

// Adds elements [begin, begin + n), all of one channel, to `a` and `b`.
template <bool kBackward, typename T>
void ReduceRun(const ReduceInput<T>& in, int64_t begin, int64_t n,
               double center, double& a, double& b) {
  const WideTag tag;
  const int64_t lanes = LaneCount();
  const int64_t end = begin + n;
  const Wide c = hn::Set(tag, center);
  // Four chains of additions: one alone would wait for its own latency.
  Wide a0 = hn::Zero(tag), a1 = a0, a2 = a0, a3 = a0;
  Wide b0 = a0, b1 = a0, b2 = a0, b3 = a0;
  int64_t i = begin;
  for (; i + 4 * lanes <= end; i += 4 * lanes) {
    AddVector<kBackward>(in, i, c, a0, b0);
    AddVector<kBackward>(in, i + lanes, c, a1, b1);
    AddVector<kBackward>(in, i + 2 * lanes, c, a2, b2);
    AddVector<kBackward>(in, i + 3 * lanes, c, a3, b3);
  }
  for (; i + lanes <= end; i += lanes) {
    AddVector<kBackward>(in, i, c, a0, b0);
  }
  double run_a = SumOfLanes(hn::Add(hn::Add(a0, a1), hn::Add(a2, a3)));
  double run_b = SumOfLanes(hn::Add(hn::Add(b0, b1), hn::Add(b2, b3)));
  for (; i < end; ++i) AddElement<kBackward>(in, i, center, run_a, run_b);
  a += run_a;
  b += run_b;
}

// One value a position of the period.
struct PeriodTables {
  std::vector<double> center;
  std::vector<double> a;
  std::vector<double> b;
};

// Adds `rows` rows that start at element `begin`, for the positions
// [first, first + 4 vectors).
template <bool kBackward, typename T>
HWY_INLINE void ReduceFourColumns(const ReduceInput<T>& in, int64_t begin,
                                  int64_t rows, int64_t stride, int64_t first,
                                  PeriodTables& tables) {
  const int64_t lanes = LaneCount();
  const double* center = tables.center.data() + first;
  double* a = tables.a.data() + first;
  double* b = tables.b.data() + first;
  const Wide c0 = LoadWide(center);
  const Wide c1 = LoadWide(center + lanes);
  const Wide c2 = LoadWide(center + 2 * lanes);
  const Wide c3 = LoadWide(center + 3 * lanes);
  Wide a0 = LoadWide(a), a1 = LoadWide(a + lanes);
  Wide a2 = LoadWide(a + 2 * lanes), a3 = LoadWide(a + 3 * lanes);
  Wide b0 = LoadWide(b), b1 = LoadWide(b + lanes);
  Wide b2 = LoadWide(b + 2 * lanes), b3 = LoadWide(b + 3 * lanes);
  int64_t i = begin + first;
  for (int64_t row = 0; row < rows; ++row, i += stride) {
    AddVector<kBackward>(in, i, c0, a0, b0);
    AddVector<kBackward>(in, i + lanes, c1, a1, b1);
    AddVector<kBackward>(in, i + 2 * lanes, c2, a2, b2);
    AddVector<kBackward>(in, i + 3 * lanes, c3, a3, b3);
  }
  StoreWide(a0, a);
  StoreWide(a1, a + lanes);
  StoreWide(a2, a + 2 * lanes);
  StoreWide(a3, a + 3 * lanes);
  StoreWide(b0, b);
  StoreWide(b1, b + lanes);
  StoreWide(b2, b + 2 * lanes);
  StoreWide(b3, b + 3 * lanes);
}

// As above for one vector.
template <bool kBackward, typename T>
HWY_INLINE void ReduceColumn(const ReduceInput<T>& in, int64_t begin,
                             int64_t rows, int64_t stride, int64_t first,
                             PeriodTables& tables) {
  const Wide center = LoadWide(tables.center.data() + first);
  Wide a = LoadWide(tables.a.data() + first);
  Wide b = LoadWide(tables.b.data() + first);
  int64_t i = begin + first;
  for (int64_t row = 0; row < rows; ++row, i += stride) {
    AddVector<kBackward>(in, i, center, a, b);
  }
  StoreWide(a, tables.a.data() + first);
  StoreWide(b, tables.b.data() + first);
}

// Sums every position of the period over the rows, in ascending order.
template <bool kBackward, typename T>
void ReduceRows(const ReduceInput<T>& in, const Period& period,
                PeriodTables& tables) {
  const int64_t lanes = LaneCount();
  const int64_t length = period.length;
  // A tile is walked once for every four columns: small enough to stay in the
  // first-level cache, tall enough to make loading the sums cheap.
  const int64_t tile_rows_max = std::max<int64_t>(8, 4096 / length);
  for (int64_t row = 0; row < period.rows; row += tile_rows_max) {
    const int64_t rows = std::min(tile_rows_max, period.rows - row);
    const int64_t begin = row * length;
    int64_t first = 0;
    for (; first + 4 * lanes <= length; first += 4 * lanes) {
      ReduceFourColumns<kBackward>(in, begin, rows, length, first, tables);
    }
    for (; first + lanes <= length; first += lanes) {
      ReduceColumn<kBackward>(in, begin, rows, length, first, tables);
    }
    for (; first < length; ++first) {
      double a = tables.a[first], b = tables.b[first];
      for (int64_t r = 0; r < rows; ++r) {
        AddElement<kBackward>(in, begin + r * length + first,
                              tables.center[first], a, b);
      }
      tables.a[first] = a;
      tables.b[first] = b;
    }
  }
  const int64_t rest_begin = period.rows * length;
  for (int64_t i = 0; i < period.rest; ++i) {
    AddElement<kBackward>(in, rest_begin + i, tables.center[i], tables.a[i],
                          tables.b[i]);
  }
}

// Requires count() > 0.
template <bool kBackward, typename T>
void Reduce(const ReduceInput<T>& in, const ReduceOutput& out) {
  const BatchShape& shape = in.shape;
  const Period period = ChoosePeriod(shape, LaneCount());
  if (period.length == 0) {
    // In the order of the memory; every channel is visited once an outer
    // index.
    for (int64_t o = 0; o < shape.outer; ++o) {
      for (int64_t c = 0; c < shape.channels; ++c) {
        const int64_t begin = (o * shape.channels + c) * shape.inner;
        ReduceRun<kBackward>(in, begin, shape.inner, in.center[c], out.a[c],
                             out.b[c]);
      }
    }
    return;
  }
  PeriodTables tables;
  tables.center.resize(period.length);
  tables.a.resize(period.length);
  tables.b.resize(period.length);
  ForEachPosition(shape, period, [&](int64_t position, int64_t channel) {
    tables.center[position] = in.center[channel];
  });
  ReduceRows<kBackward>(in, period, tables);
  ForEachPosition(shape, period, [&](int64_t position, int64_t channel) {
    out.a[channel] += tables.a[position];
    out.b[channel] += tables.b[position];
  });
}

template <typename T>
void MomentsOf(const MomentsArgs& args) {
  const BatchShape& shape = args.shape;
  const T* x = static_cast<const T*>(args.x);
  std::vector<double> shift(shape.channels);
  for (int64_t c = 0; c < shape.channels; ++c) shift[c] = x[c * shape.inner];
  Reduce<false>(ReduceInput<T>{shape, x, nullptr, shift.data()},
                ReduceOutput{args.mean, args.m2});
  const double n = static_cast<double>(shape.count());
  for (int64_t c = 0; c < shape.channels; ++c) {
    const double sum = args.mean[c];
    const double m2 = args.m2[c] - sum * (sum / n);
    args.mean[c] = shift[c] + sum / n;
    // Rounding may leave a little less than nothing; NaN must pass.
    args.m2[c] = m2 < 0 ? 0 : m2;
  }
}

void MomentsHere(const MomentsArgs& args) {
  std::fill_n(args.mean, args.shape.channels, 0.0);
  std::fill_n(args.m2, args.shape.channels, 0.0);
  if (args.shape.count() == 0 || args.shape.channels == 0) return;
  if (args.type == DataType::kFloat32) {
    MomentsOf<float>(args);
  } else {
    MomentsOf<double>(args);
  }
}

template <typename T>
void BackwardReduceOf(const BackwardReduceArgs& args) {
  Reduce<true>(ReduceInput<T>{args.shape, static_cast<const T*>(args.x),
                              static_cast<const T*>(args.dy), args.mean},
               ReduceOutput{args.sum_dy, args.sum_dy_xmu});
}

void BackwardReduceHere(const BackwardReduceArgs& args) {
  std::fill_n(args.sum_dy, args.shape.channels, 0.0);
  std::fill_n(args.sum_dy_xmu, args.shape.channels, 0.0);
  if (args.shape.count() == 0 || args.shape.channels == 0) return;
  if (args.type == DataType::kFloat32) {
    BackwardReduceOf<float>(args);
  } else {
    BackwardReduceOf<double>(args);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace cohort::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::kernels::cpu {

HWY_EXPORT(MomentsHere);
HWY_EXPORT(BackwardReduceHere);

void Moments(const MomentsArgs& args) {
  HWY_DYNAMIC_DISPATCH(MomentsHere)(args);
}

void BackwardReduce(const BackwardReduceArgs& args) {
  HWY_DYNAMIC_DISPATCH(BackwardReduceHere)(args);
}

}  // namespace cohort::kernels::cpu
#endif  // HWY_ONCE
