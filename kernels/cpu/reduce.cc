// Per-channel sums: moments and the reduction of the backward pass.

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/backend.h"
#include "kernels/channel_factors.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/grid.h"
#include "kernels/data_type.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/reduce.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/lanes_inl.h"

#ifndef COHORT_KERNELS_CPU_REDUCE_ONCE_
#define COHORT_KERNELS_CPU_REDUCE_ONCE_
namespace cohort::kernels::cpu {

// Sums over a channel's elements, with d = x - mean:
//   kMoments          a = sum d,   b = sum d*d
//   kBackward         a = sum dy,  b = sum dy*d
//   kRecomputedMask   the same where the recomputed activation is positive
//   kMaskOfOutput     the same where y is positive
// All float64.
enum class Sum { kMoments, kBackward, kRecomputedMask, kMaskOfOutput };

// Fields of the ColumnTable of factors; only a recomputed mask needs more than
// the mean (for moments, the shift).
enum Factor : int64_t { kMean, kScale, kBeta };
// Fields of a ColumnTable of sums.
enum Field : int64_t { kA, kB };

// Tensors that the sum does not need are null.
template <typename T>
struct ReduceInput {
  Grid grid;
  const ColumnTable* factors = nullptr;
  const T* x = nullptr;
  const T* dy = nullptr;
  const T* y = nullptr;
  T* dz = nullptr;
};

template <Sum kSum>
ChannelFactors FactorsAt(const ColumnTable& table, int64_t column) {
  ChannelFactors f = {.mean = table.At(column, kMean)};
  if constexpr (kSum == Sum::kRecomputedMask) {
    f.scale = table.At(column, kScale);
    f.beta = table.At(column, kBeta);
  }
  return f;
}

}  // namespace cohort::kernels::cpu
#endif  // COHORT_KERNELS_CPU_REDUCE_ONCE_

HWY_BEFORE_NAMESPACE();
namespace cohort::kernels::cpu {
namespace HWY_NAMESPACE {

struct WideFactors {
  Wide mean;
  Wide scale;
  Wide beta;
};

// `fields` points to the vector of columns.
template <Sum kSum>
HWY_INLINE WideFactors LoadFactors(const double* fields) {
  const int64_t lanes = LaneCount();
  const Wide mean = LoadWide(fields);
  if constexpr (kSum != Sum::kRecomputedMask) return {mean, mean, mean};
  return {mean, LoadWide(fields + kScale * lanes),
          LoadWide(fields + kBeta * lanes)};
}

template <Sum kSum, typename T>
HWY_INLINE void AddVector(const ReduceInput<T>& in, int64_t i,
                          const WideFactors& f, Wide& a, Wide& b) {
  const WideTag tag;
  const Wide d = hn::Sub(LoadWide(in.x + i), f.mean);
  Wide g = d;
  if constexpr (kSum != Sum::kMoments) g = LoadWide(in.dy + i);
  if constexpr (kSum == Sum::kRecomputedMask || kSum == Sum::kMaskOfOutput) {
    Wide value;
    if constexpr (kSum == Sum::kRecomputedMask) {
      // The forward pass's operations, bitwise.
      value = hn::Add(hn::Mul(d, f.scale), f.beta);
    } else {
      value = LoadWide(in.y + i);
    }
    g = hn::IfThenZeroElse(hn::Le(value, hn::Set(tag, kRoundsToZero<T>)), g);
    if (in.dz != nullptr) StoreWide(g, in.dz + i);
  }
  a = hn::Add(a, g);
  b = hn::MulAdd(g, d, b);
}

template <Sum kSum, typename T>
HWY_INLINE void AddElement(const ReduceInput<T>& in, int64_t i,
                           const ChannelFactors& f, double& a, double& b) {
  const auto x = static_cast<double>(in.x[i]);
  const double d = x - f.mean;
  double g = d;
  if constexpr (kSum != Sum::kMoments) g = static_cast<double>(in.dy[i]);
  if constexpr (kSum == Sum::kRecomputedMask || kSum == Sum::kMaskOfOutput) {
    g = MaskOne<T>(kSum == Sum::kRecomputedMask ? NormalizeOne(x, f)
                                                : static_cast<double>(in.y[i]),
                   g);
    if (in.dz != nullptr) in.dz[i] = static_cast<T>(g);
  }
  a += g;
  b += g * d;
}

template <Sum kSum, typename T>
HWY_INLINE void ReduceRun(const ReduceInput<T>& in, const Run& run,
                          int64_t channel, ColumnTable& sums) {
  const WideTag tag;
  const int64_t lanes = LaneCount();
  const int64_t end = run.begin + run.count;
  const ChannelFactors f = FactorsAt<kSum>(*in.factors, channel);
  const WideFactors wide = {hn::Set(tag, f.mean), hn::Set(tag, f.scale),
                            hn::Set(tag, f.beta)};
  // Four chains of additions: one alone would wait for its own latency.
  Wide a0 = hn::Zero(tag), a1 = a0, a2 = a0, a3 = a0;
  Wide b0 = a0, b1 = a0, b2 = a0, b3 = a0;
  int64_t i = run.begin;
  for (; i + 4 * lanes <= end; i += 4 * lanes) {
    AddVector<kSum>(in, i, wide, a0, b0);
    AddVector<kSum>(in, i + lanes, wide, a1, b1);
    AddVector<kSum>(in, i + 2 * lanes, wide, a2, b2);
    AddVector<kSum>(in, i + 3 * lanes, wide, a3, b3);
  }
  for (; i + lanes <= end; i += lanes) AddVector<kSum>(in, i, wide, a0, b0);
  double run_a = SumOfLanes(hn::Add(hn::Add(a0, a1), hn::Add(a2, a3)));
  double run_b = SumOfLanes(hn::Add(hn::Add(b0, b1), hn::Add(b2, b3)));
  for (; i < end; ++i) AddElement<kSum>(in, i, f, run_a, run_b);
  sums.At(channel, kA) += run_a;
  sums.At(channel, kB) += run_b;
}

// Rows that share a load and a store of the sums. With more of them the
// prefetcher loses its way.
constexpr int64_t kRowsTogether = 4;

// Adds columns [first, last) of kRows rows, the first of which starts at
// element `begin`, to the sums, in ascending order. `first` is a multiple of
// the lanes.
template <Sum kSum, int64_t kRows, typename T>
HWY_INLINE void ReduceRows(const ReduceInput<T>& in, int64_t begin,
                           int64_t first, int64_t last, ColumnTable& sums) {
  const int64_t lanes = LaneCount();
  const int64_t stride = in.grid.columns;
  int64_t column = first;
  for (; column + lanes <= last; column += lanes) {
    const WideFactors f = LoadFactors<kSum>(in.factors->Vector(column));
    // As far into the rows together as into each.
    const int64_t walked = begin + first + (column - first) * kRows;
    PrefetchAhead(in.x, walked);
    if (kSum != Sum::kMoments) PrefetchAhead(in.dy, walked);
    double* sum = sums.Vector(column);
    Wide a = LoadWide(sum);
    Wide b = LoadWide(sum + lanes);
    for (int64_t row = 0; row < kRows; ++row) {
      AddVector<kSum>(in, begin + row * stride + column, f, a, b);
    }
    StoreWide(a, sum);
    StoreWide(b, sum + lanes);
  }
  for (; column < last; ++column) {
    const ChannelFactors f = FactorsAt<kSum>(*in.factors, column);
    for (int64_t row = 0; row < kRows; ++row) {
      AddElement<kSum>(in, begin + row * stride + column, f,
                       sums.At(column, kA), sums.At(column, kB));
    }
  }
}

// Adds the tile's elements to the sums. By value, as MapTile.
template <Sum kSum, typename T>
void ReduceTile(const ReduceInput<T> in, const Tile tile, ColumnTable& sums) {
  if (in.grid.runs) {
    for (int64_t row = tile.row_begin; row < tile.row_end; ++row) {
      for (int64_t c = tile.column_begin; c < tile.column_end; ++c) {
        ReduceRun<kSum>(in, in.grid.RunAt(row, c), c, sums);
      }
    }
    return;
  }
  const int64_t first = tile.column_begin;
  const int64_t last = tile.column_end;
  const int64_t stride = in.grid.columns;
  int64_t row = tile.row_begin;
  for (; row + kRowsTogether <= tile.row_end; row += kRowsTogether) {
    ReduceRows<kSum, kRowsTogether>(in, row * stride, first, last, sums);
  }
  for (; row < tile.row_end; ++row) {
    ReduceRows<kSum, 1>(in, row * stride, first, last, sums);
  }
  ReduceRows<kSum, 1>(in, in.grid.rows * stride, first, tile.rest_end, sums);
}

// [channels] each; zero on entry.
struct ReduceOutput {
  double* a = nullptr;
  double* b = nullptr;
};

// Every row of tiles has separate sums, which are added in their order: the
// bits do not depend on who computed them.
template <Sum kSum, typename T>
void Reduce(const ReduceInput<T>& in, const BatchShape& shape,
            const ReduceOutput& out, const ParallelFor& parallel_for) {
  std::vector<ColumnTable> sums(static_cast<size_t>(in.grid.row_tiles()),
                                ColumnTable(in.grid, 2, LaneCount()));
  ForTiles(in.grid, parallel_for, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Tile tile = in.grid.TileAt(i);
      ReduceTile<kSum>(in, tile, sums[static_cast<size_t>(tile.row_tile)]);
    }
  });
  for (const ColumnTable& row : sums) {
    ForEachColumn(in.grid, shape, [&](int64_t column, int64_t channel) {
      out.a[channel] += row.At(column, kA);
      out.b[channel] += row.At(column, kB);
    });
  }
}

ColumnTable MeanTable(const Grid& grid, const BatchShape& shape,
                      const double* mean) {
  ColumnTable table(grid, 1, LaneCount());
  ForEachColumn(grid, shape, [&](int64_t column, int64_t channel) {
    table.At(column, kMean) = mean[channel];
  });
  return table;
}

ColumnTable MaskTable(const Grid& grid, const BackwardReduceArgs& args) {
  const std::vector<ChannelFactors> factors = NormalizeFactors(args);
  ColumnTable table(grid, 3, LaneCount());
  ForEachColumn(grid, args.shape, [&](int64_t column, int64_t channel) {
    const ChannelFactors& f = factors[static_cast<size_t>(channel)];
    table.At(column, kMean) = f.mean;
    table.At(column, kScale) = f.scale;
    table.At(column, kBeta) = f.beta;
  });
  return table;
}

template <typename T>
void MomentsOf(const MomentsArgs& args, const ParallelFor& parallel_for) {
  const BatchShape& shape = args.shape;
  const T* x = static_cast<const T*>(args.x);
  std::vector<double> shift(shape.channels);
  for (int64_t c = 0; c < shape.channels; ++c) {
    shift[c] = static_cast<double>(x[c * shape.inner]);
  }
  ReduceInput<T> in;
  in.grid = GridOf(shape, LaneCount());
  in.x = x;
  const ColumnTable factors = MeanTable(in.grid, shape, shift.data());
  in.factors = &factors;
  Reduce<Sum::kMoments>(in, shape, {args.mean, args.m2}, parallel_for);
  const double n = static_cast<double>(shape.count());
  for (int64_t c = 0; c < shape.channels; ++c) {
    const double sum = args.mean[c];
    const double m2 = args.m2[c] - sum * (sum / n);
    args.mean[c] = shift[c] + sum / n;
    // Rounding may leave a little less than nothing; NaN must pass.
    args.m2[c] = m2 < 0 ? 0 : m2;
  }
}

void MomentsHere(const MomentsArgs& args, const ParallelFor& parallel_for) {
  std::fill_n(args.mean, args.shape.channels, 0.0);
  std::fill_n(args.m2, args.shape.channels, 0.0);
  if (args.shape.count() == 0 || args.shape.channels == 0) return;
  VisitType(args.type, [&]<typename T>(std::type_identity<T>) {
    MomentsOf<T>(args, parallel_for);
  });
}

template <typename T>
void BackwardReduceOf(const BackwardReduceArgs& args,
                      const ParallelFor& parallel_for) {
  const BatchShape& shape = args.shape;
  const ReduceOutput out = {args.sum_dy, args.sum_dy_xmu};
  ReduceInput<T> in;
  in.grid = GridOf(shape, LaneCount());
  in.x = static_cast<const T*>(args.x);
  in.dy = static_cast<const T*>(args.dy);
  const bool recomputes = args.relu && args.y == nullptr;
  const ColumnTable factors = recomputes ? MaskTable(in.grid, args)
                                         : MeanTable(in.grid, shape, args.mean);
  in.factors = &factors;
  if (!args.relu) {
    Reduce<Sum::kBackward>(in, shape, out, parallel_for);
    return;
  }
  in.dz = static_cast<T*>(args.dz);
  in.y = static_cast<const T*>(args.y);
  if (recomputes) {
    Reduce<Sum::kRecomputedMask>(in, shape, out, parallel_for);
  } else {
    Reduce<Sum::kMaskOfOutput>(in, shape, out, parallel_for);
  }
}

void BackwardReduceHere(const BackwardReduceArgs& args,
                        const ParallelFor& parallel_for) {
  std::fill_n(args.sum_dy, args.shape.channels, 0.0);
  std::fill_n(args.sum_dy_xmu, args.shape.channels, 0.0);
  if (args.shape.count() == 0 || args.shape.channels == 0) return;
  VisitType(args.type, [&]<typename T>(std::type_identity<T>) {
    BackwardReduceOf<T>(args, parallel_for);
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace cohort::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::kernels::cpu {

HWY_EXPORT(MomentsHere);
HWY_EXPORT(BackwardReduceHere);

void Moments(const MomentsArgs& args, const ParallelFor& parallel_for) {
  HWY_DYNAMIC_DISPATCH(MomentsHere)(args, parallel_for);
}

void BackwardReduce(const BackwardReduceArgs& args,
                    const ParallelFor& parallel_for) {
  HWY_DYNAMIC_DISPATCH(BackwardReduceHere)(args, parallel_for);
}

}  // namespace cohort::kernels::cpu
#endif  // HWY_ONCE
