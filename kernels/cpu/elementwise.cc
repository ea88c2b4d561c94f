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

// Fields of a ColumnTable of factors. A short table stays in the first-level
// cache, so the backward pass has beta last, and only if it needs it.
enum Field : int64_t { kMean, kScale, kForwardBeta };
enum BackwardField : int64_t { kDyMean = 2, kSlope, kBackwardBeta };

constexpr int64_t FieldsOf(Mode mode) {
  if (mode.pass != Pass::kBackward) return 3;
  return mode.relu ? 5 : 4;
}

constexpr int64_t BetaOf(Mode mode) {
  return mode.pass == Pass::kBackward ? int64_t{kBackwardBeta}
                                      : int64_t{kForwardBeta};
}

template <Mode kMode>
ColumnTable FactorTable(const Grid& grid, const BatchShape& shape,
                        const std::vector<ChannelFactors>& factors,
                        int64_t lanes) {
  ColumnTable table(grid, FieldsOf(kMode), lanes);
  ForEachColumn(grid, shape, [&](int64_t column, int64_t channel) {
    const ChannelFactors& f = factors[static_cast<size_t>(channel)];
    table.At(column, kMean) = f.mean;
    table.At(column, kScale) = f.scale;
    if constexpr (kMode.pass == Pass::kBackward) {
      table.At(column, kDyMean) = f.dy_mean;
      table.At(column, kSlope) = f.slope;
    }
    if constexpr (BetaOf(kMode) < FieldsOf(kMode)) {
      table.At(column, BetaOf(kMode)) = f.beta;
    }
  });
  return table;
}

// `other` is z of the forward pass and dy of the backward pass; `out` may be
// either of the inputs.
template <typename T>
struct MapArgs {
  Grid grid;
  const ColumnTable* factors = nullptr;
  const T* x = nullptr;
  const T* other = nullptr;
  T* out = nullptr;
};

template <Mode kMode>
ChannelFactors FactorsAt(const ColumnTable& table, int64_t column) {
  ChannelFactors f = {.mean = table.At(column, kMean),
                      .scale = table.At(column, kScale)};
  if constexpr (kMode.pass == Pass::kBackward) {
    f.dy_mean = table.At(column, kDyMean);
    f.slope = table.At(column, kSlope);
  }
  if constexpr (BetaOf(kMode) < FieldsOf(kMode)) {
    f.beta = table.At(column, BetaOf(kMode));
  }
  return f;
}

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

// `fields` points to the vector of columns.
template <Mode kMode>
HWY_INLINE WideFactors LoadFactors(const double* fields) {
  const int64_t lanes = LaneCount();
  const Wide mean = LoadWide(fields + kMean * lanes);
  // Its implicit constructor would lack the target's attributes on Arm.
  WideFactors f = {mean, LoadWide(fields + kScale * lanes), mean, mean, mean};
  if constexpr (kMode.pass == Pass::kBackward) {
    f.dy_mean = LoadWide(fields + kDyMean * lanes);
    f.slope = LoadWide(fields + kSlope * lanes);
  }
  if constexpr (BetaOf(kMode) < FieldsOf(kMode)) {
    f.beta = LoadWide(fields + BetaOf(kMode) * lanes);
  }
  return f;
}

// MapOne for a vector of elements at `i`, and the same bits.
template <Mode kMode, typename T>
HWY_INLINE Wide MapVector(const MapArgs<T>& args, int64_t i,
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
    return value;
  }
  Wide dy = LoadWide(args.other + i);
  if constexpr (kMode.relu) {
    const Wide floor = hn::Set(tag, kRoundsToZero<T>);
    dy = hn::IfThenZeroElse(hn::Le(value, floor), dy);
  }
  if constexpr (kMode.pass == Pass::kBackward) {
    dy = hn::Sub(hn::Sub(dy, f.dy_mean), hn::Mul(d, f.slope));
  }
  return hn::Mul(dy, f.scale);
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
  const ChannelFactors f = FactorsAt<kMode>(*args.factors, channel);
  const WideFactors wide = {hn::Set(tag, f.mean), hn::Set(tag, f.scale),
                            hn::Set(tag, f.beta), hn::Set(tag, f.dy_mean),
                            hn::Set(tag, f.slope)};
  const int64_t end = run.begin + run.count;
  int64_t i = run.begin;
  for (; i + lanes <= end; i += lanes) {
    StoreWide(MapVector<kMode>(args, i, wide), args.out + i);
  }
  for (; i < end; ++i) MapElement<kMode>(args, i, f);
}

// Rows that share a load of the factors. Four gained nothing, and the rows of
// three tensors would then not fit into a set of the first-level cache.
constexpr int64_t kRowsTogether = 2;

// Maps columns [first, last) of kRows rows, the first of which starts at
// element `begin`. `first` is a multiple of the lanes.
template <Mode kMode, int64_t kRows, typename T>
HWY_INLINE void MapRows(const MapArgs<T>& args, int64_t begin, int64_t first,
                        int64_t last) {
  const int64_t lanes = LaneCount();
  const int64_t stride = args.grid.columns;
  int64_t column = first;
  for (; column + lanes <= last; column += lanes) {
    const WideFactors f = LoadFactors<kMode>(args.factors->Vector(column));
    // As far into the rows together as into each.
    const int64_t walked = begin + first + (column - first) * kRows;
    PrefetchAhead(args.x, walked);
    if (args.other != nullptr) PrefetchAhead(args.other, walked);
    PrefetchAhead(args.out, walked);
    // All loads before the stores: rows a multiple of 4 KiB apart would seem
    // to the processor to depend on them.
    Wide out[kRows];
    for (int64_t row = 0; row < kRows; ++row) {
      out[row] = MapVector<kMode>(args, begin + row * stride + column, f);
    }
    for (int64_t row = 0; row < kRows; ++row) {
      StoreWide(out[row], args.out + begin + row * stride + column);
    }
  }
  for (; column < last; ++column) {
    const ChannelFactors f = FactorsAt<kMode>(*args.factors, column);
    for (int64_t row = 0; row < kRows; ++row) {
      MapElement<kMode>(args, begin + row * stride + column, f);
    }
  }
}

// By value: with copies that no other code can reach, the compiler need not
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
  const int64_t last = tile.column_end;
  int64_t row = tile.row_begin;
  for (; row + kRowsTogether <= tile.row_end; row += kRowsTogether) {
    MapRows<kMode, kRowsTogether>(args, row * stride, first, last);
  }
  for (; row < tile.row_end; ++row) {
    MapRows<kMode, 1>(args, row * stride, first, last);
  }
  MapRows<kMode, 1>(args, args.grid.rows * stride, first, tile.rest_end);
}

// Tiles in descending order: the pass before, over the same tensors, ended
// with the last, so they are the ones still in the caches.
template <Mode kMode, typename T>
void Map(MapArgs<T> args, const BatchShape& shape,
         const std::vector<ChannelFactors>& factors,
         const ParallelFor& parallel_for) {
  const ColumnTable table =
      FactorTable<kMode>(args.grid, shape, factors, LaneCount());
  args.factors = &table;
  ForTiles(args.grid, parallel_for, [&args](int64_t begin, int64_t end) {
    for (int64_t i = end - 1; i >= begin; --i) {
      MapTile<kMode>(args, args.grid.TileAt(i));
    }
  });
}

template <typename T>
void NormalizeOf(const NormalizeArgs& args, const ParallelFor& parallel_for) {
  const MapArgs<T> map = {.grid = GridOf(args.shape, LaneCount()),
                          .x = static_cast<const T*>(args.x),
                          .other = static_cast<const T*>(args.add),
                          .out = static_cast<T*>(args.y)};
  const std::vector<ChannelFactors> factors = NormalizeFactors(args);
  const auto run = [&]<Mode kMode>() {
    Map<kMode>(map, args.shape, factors, parallel_for);
  };
  if (args.add != nullptr) {
    args.relu ? run.template operator()<Mode{.relu = true, .add = true}>()
              : run.template operator()<Mode{.add = true}>();
  } else {
    args.relu ? run.template operator()<Mode{.relu = true}>()
              : run.template operator()<Mode{}>();
  }
}

void NormalizeHere(const NormalizeArgs& args, const ParallelFor& parallel_for) {
  if (args.shape.count() == 0 || args.shape.channels == 0) return;
  VisitType(args.type, [&]<typename T>(std::type_identity<T>) {
    NormalizeOf<T>(args, parallel_for);
  });
}

template <Pass kPass, typename T>
void BackwardOf(const BackwardElementwiseArgs& args,
                const ParallelFor& parallel_for) {
  const MapArgs<T> map = {.grid = GridOf(args.shape, LaneCount()),
                          .x = static_cast<const T*>(args.x),
                          .other = static_cast<const T*>(args.dy),
                          .out = static_cast<T*>(args.dx)};
  const std::vector<ChannelFactors> factors = BackwardFactors(args);
  if (args.relu) {
    Map<Mode{.pass = kPass, .relu = true}>(map, args.shape, factors,
                                           parallel_for);
  } else {
    Map<Mode{.pass = kPass}>(map, args.shape, factors, parallel_for);
  }
}

void BackwardElementwiseHere(const BackwardElementwiseArgs& args,
                             const ParallelFor& parallel_for) {
  if (args.shape.count() == 0 || args.shape.channels == 0) return;
  VisitType(args.type, [&]<typename T>(std::type_identity<T>) {
    if (args.sum_dy == nullptr) {
      BackwardOf<Pass::kFrozenBackward, T>(args, parallel_for);
    } else {
      BackwardOf<Pass::kBackward, T>(args, parallel_for);
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
