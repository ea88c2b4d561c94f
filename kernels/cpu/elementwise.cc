// Normalisation and the elementwise half of the backward pass.
//
// Products and sums are separate operations, not MulAdd, so that an element's
// bits depend neither on the instruction set nor on its place in the tensor.

#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/backend.h"
#include "kernels/channel_factors.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/grid.h"
#include "kernels/data_type.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/lanes_inl.h"

#ifndef COHORT_KERNELS_CPU_ELEMENTWISE_ONCE_
#define COHORT_KERNELS_CPU_ELEMENTWISE_ONCE_
namespace cohort::kernels::cpu {

enum class Pass { kForward, kBackward, kFrozenBackward };

// Which of the elementwise kernels.
struct Mode {
  Pass pass = Pass::kForward;
  bool relu = false;
  // Forward only.
  bool add = false;
};

// The factors of every column, a table each, so that they load as vectors.
struct FactorTables {
  FactorTables(const Grid& grid, const BatchShape& shape,
               const std::vector<ChannelFactors>& factors)
      : mean(grid.columns),
        scale(grid.columns),
        beta(grid.columns),
        dy_mean(grid.columns),
        slope(grid.columns) {
    ForEachColumn(grid, shape, [&](int64_t column, int64_t channel) {
      const ChannelFactors& f = factors[channel];
      mean[column] = f.mean;
      scale[column] = f.scale;
      beta[column] = f.beta;
      dy_mean[column] = f.dy_mean;
      slope[column] = f.slope;
    });
  }

  std::vector<double> mean;
  std::vector<double> scale;
  std::vector<double> beta;
  std::vector<double> dy_mean;
  std::vector<double> slope;
};

// `other` is z of the forward pass and dy of the backward pass; `out` may be
// either of the inputs. The tables are those of FactorTables.
template <typename T>
struct MapArgs {
  Grid grid;
  const T* x = nullptr;
  const T* other = nullptr;
  T* out = nullptr;
  const double* mean = nullptr;
  const double* scale = nullptr;
  const double* beta = nullptr;
  const double* dy_mean = nullptr;
  const double* slope = nullptr;

  ChannelFactors FactorsAt(int64_t column) const {
    return {mean[column], scale[column], beta[column], dy_mean[column],
            slope[column]};
  }
};

template <Mode kMode, typename T>
inline double MapOne(double x, const T* other, const ChannelFactors& f) {
  if constexpr (kMode.pass == Pass::kForward) {
    double value = NormalizeOne(x, f);
    if constexpr (kMode.add) value += static_cast<double>(*other);
    return kMode.relu ? ReluOne(value) : value;
  } else {
    auto dy = static_cast<double>(*other);
    if constexpr (kMode.relu) dy = MaskOne<T>(NormalizeOne(x, f), dy);
    if constexpr (kMode.pass == Pass::kFrozenBackward) return dy * f.scale;
    return BackwardOne(x, dy, f);
  }
}

}  // namespace cohort::kernels::cpu
#endif  // COHORT_KERNELS_CPU_ELEMENTWISE_ONCE_

HWY_BEFORE_NAMESPACE();
namespace cohort::kernels::cpu {
namespace HWY_NAMESPACE {

// ChannelFactors, one lane a column.
struct WideFactors {
  Wide mean;
  Wide scale;
  Wide beta;
  Wide dy_mean;
  Wide slope;
};

template <typename T>
HWY_INLINE WideFactors LoadFactors(const MapArgs<T>& args, int64_t column) {
  return {LoadWide(args.mean + column), LoadWide(args.scale + column),
          LoadWide(args.beta + column), LoadWide(args.dy_mean + column),
          LoadWide(args.slope + column)};
}

// MapOne for a vector of elements at `i`, and the same bits.
template <Mode kMode, typename T>
HWY_INLINE void MapVector(const MapArgs<T>& args, int64_t i,
                          const WideFactors& f) {
  const WideTag tag;
  constexpr bool kForward = kMode.pass == Pass::kForward;
  constexpr bool kReadsX = kMode.pass != Pass::kFrozenBackward || kMode.relu;
  Wide d = hn::Zero(tag);
  if constexpr (kReadsX) d = hn::Sub(LoadWide(args.x + i), f.mean);
  Wide value = d;
  if constexpr (kForward || kMode.relu) {
    value = hn::Add(hn::Mul(d, f.scale), f.beta);
  }
  if constexpr (kForward) {
    if constexpr (kMode.add) value = hn::Add(value, LoadWide(args.other + i));
    if constexpr (kMode.relu) {
      value = hn::IfThenZeroElse(hn::Le(value, hn::Zero(tag)), value);
    }
    StoreWide(value, args.out + i);
  } else {
    Wide dy = LoadWide(args.other + i);
    if constexpr (kMode.relu) {
      const Wide floor = hn::Set(tag, kRoundsToZero<T>);
      dy = hn::IfThenZeroElse(hn::Le(value, floor), dy);
    }
    if constexpr (kMode.pass == Pass::kBackward) {
      dy = hn::Sub(hn::Sub(dy, f.dy_mean), hn::Mul(d, f.slope));
    }
    StoreWide(hn::Mul(dy, f.scale), args.out + i);
  }
}

template <Mode kMode, typename T>
HWY_INLINE void MapElement(const MapArgs<T>& args, int64_t i,
                           const ChannelFactors& f) {
  const T* other = args.other == nullptr ? nullptr : args.other + i;
  args.out[i] =
      static_cast<T>(MapOne<kMode>(static_cast<double>(args.x[i]), other, f));
}

template <Mode kMode, typename T>
HWY_INLINE void MapRun(const MapArgs<T>& args, const Run& run,
                       int64_t channel) {
  const WideTag tag;
  const int64_t lanes = LaneCount();
  const ChannelFactors f = args.FactorsAt(channel);
  const WideFactors wide = {hn::Set(tag, f.mean), hn::Set(tag, f.scale),
                            hn::Set(tag, f.beta), hn::Set(tag, f.dy_mean),
                            hn::Set(tag, f.slope)};
  const int64_t end = run.begin + run.count;
  int64_t i = run.begin;
  for (; i + lanes <= end; i += lanes) MapVector<kMode>(args, i, wide);
  for (; i < end; ++i) MapElement<kMode>(args, i, f);
}

// Rows that share a load of the factors.
constexpr int64_t kRowsTogether = 4;

// Maps columns [first, last) of kRows rows, the first of which starts at
// element `begin`.
template <Mode kMode, int64_t kRows, typename T>
HWY_INLINE void MapRows(const MapArgs<T>& args, int64_t begin, int64_t first,
                        int64_t last) {
  const int64_t lanes = LaneCount();
  const int64_t stride = args.grid.columns;
  int64_t column = first;
  for (; column + lanes <= last; column += lanes) {
    const WideFactors f = LoadFactors(args, column);
    for (int64_t row = 0; row < kRows; ++row) {
      MapVector<kMode>(args, begin + row * stride + column, f);
    }
  }
  for (; column < last; ++column) {
    const ChannelFactors f = args.FactorsAt(column);
    for (int64_t row = 0; row < kRows; ++row) {
      MapElement<kMode>(args, begin + row * stride + column, f);
    }
  }
}

// By value: with copies that nobody else can reach, the compiler need not
// read the pointers again after every store.
template <Mode kMode, typename T>
void MapTile(const MapArgs<T> args, const Tile tile) {
  if (args.grid.runs) {
    for (int64_t row = tile.row_begin; row < tile.row_end; ++row) {
      for (int64_t c = tile.column_begin; c < tile.column_end; ++c) {
        MapRun<kMode>(args, args.grid.RunAt(row, c), c);
      }
    }
    return;
  }
  const int64_t first = tile.column_begin;
  const int64_t stride = args.grid.columns;
  int64_t row = tile.row_begin;
  for (; row + kRowsTogether <= tile.row_end; row += kRowsTogether) {
    MapRows<kMode, kRowsTogether>(args, row * stride, first, tile.column_end);
  }
  for (; row < tile.row_end; ++row) {
    MapRows<kMode, 1>(args, row * stride, first, tile.column_end);
  }
  MapRows<kMode, 1>(args, args.grid.rows * stride, first, tile.rest_end);
}

// Tiles in descending order: the pass before, over the same tensors, ended
// with the last, so they are the ones still in the caches.
template <Mode kMode, typename T>
void Map(const MapArgs<T>& args, const ParallelFor& parallel_for) {
  ForTiles(args.grid, parallel_for, [&args](int64_t begin, int64_t end) {
    for (int64_t i = end - 1; i >= begin; --i) {
      MapTile<kMode>(args, args.grid.TileAt(i));
    }
  });
}

template <typename T>
MapArgs<T> MapArgsOf(const Grid& grid, const FactorTables& tables) {
  MapArgs<T> args;
  args.grid = grid;
  args.mean = tables.mean.data();
  args.scale = tables.scale.data();
  args.beta = tables.beta.data();
  args.dy_mean = tables.dy_mean.data();
  args.slope = tables.slope.data();
  return args;
}

void NormalizeHere(const NormalizeArgs& args, const ParallelFor& parallel_for) {
  if (args.shape.count() == 0 || args.shape.channels == 0) return;
  const Grid grid = GridOf(args.shape, LaneCount());
  const FactorTables tables(grid, args.shape, NormalizeFactors(args));
  VisitType(args.type, [&]<typename T>(std::type_identity<T>) {
    MapArgs<T> map = MapArgsOf<T>(grid, tables);
    map.x = static_cast<const T*>(args.x);
    map.other = static_cast<const T*>(args.add);
    map.out = static_cast<T*>(args.y);
    if (args.add != nullptr) {
      args.relu ? Map<Mode{.relu = true, .add = true}>(map, parallel_for)
                : Map<Mode{.add = true}>(map, parallel_for);
    } else {
      args.relu ? Map<Mode{.relu = true}>(map, parallel_for)
                : Map<Mode{}>(map, parallel_for);
    }
  });
}

template <Pass kPass, typename T>
void MapBackward(const MapArgs<T>& map, bool relu,
                 const ParallelFor& parallel_for) {
  relu ? Map<Mode{.pass = kPass, .relu = true}>(map, parallel_for)
       : Map<Mode{.pass = kPass}>(map, parallel_for);
}

void BackwardElementwiseHere(const BackwardElementwiseArgs& args,
                             const ParallelFor& parallel_for) {
  if (args.shape.count() == 0 || args.shape.channels == 0) return;
  const Grid grid = GridOf(args.shape, LaneCount());
  const FactorTables tables(grid, args.shape, BackwardFactors(args));
  VisitType(args.type, [&]<typename T>(std::type_identity<T>) {
    MapArgs<T> map = MapArgsOf<T>(grid, tables);
    map.x = static_cast<const T*>(args.x);
    map.other = static_cast<const T*>(args.dy);
    map.out = static_cast<T*>(args.dx);
    if (args.sum_dy == nullptr) {
      MapBackward<Pass::kFrozenBackward>(map, args.relu, parallel_for);
    } else {
      MapBackward<Pass::kBackward>(map, args.relu, parallel_for);
    }
  });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace cohort::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::kernels::cpu {

HWY_EXPORT(NormalizeHere);
HWY_EXPORT(BackwardElementwiseHere);

void Normalize(const NormalizeArgs& args, const ParallelFor& parallel_for) {
  HWY_DYNAMIC_DISPATCH(NormalizeHere)(args, parallel_for);
}

void BackwardElementwise(const BackwardElementwiseArgs& args,
                         const ParallelFor& parallel_for) {
  HWY_DYNAMIC_DISPATCH(BackwardElementwiseHere)(args, parallel_for);
}

}  // namespace cohort::kernels::cpu
#endif  // HWY_ONCE
