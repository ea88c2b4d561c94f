// Normalisation and the elementwise half of the backward pass.
//
// Products and sums are separate operations, not MulAdd, so that an element's
// bits depend neither on the instruction set nor on its place in the tensor.

#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "kernels/channel_factors.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/period.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/lanes_inl.h"

HWY_BEFORE_NAMESPACE();
namespace cohort::kernels::cpu {
namespace HWY_NAMESPACE {

// `dy` is read by the backward pass only; `out` may be `x` or `dy`.
template <typename T>
struct MapArgs {
  BatchShape shape;
  const T* x = nullptr;
  const T* dy = nullptr;
  T* out = nullptr;
};

template <bool kBackward, typename T>
HWY_INLINE void MapVector(const MapArgs<T>& args, int64_t i, Wide mean,
                          Wide scale, Wide shift, Wide slope) {
  const Wide d = hn::Sub(LoadWide(args.x + i), mean);
  if constexpr (kBackward) {
    const Wide centred = hn::Sub(LoadWide(args.dy + i), shift);
    StoreWide(hn::Mul(hn::Sub(centred, hn::Mul(d, slope)), scale),
              args.out + i);
  } else {
    StoreWide(hn::Add(hn::Mul(d, scale), shift), args.out + i);
  }
}

template <bool kBackward, typename T>
HWY_INLINE void MapElement(const MapArgs<T>& args, int64_t i,
                           const ChannelFactors& f) {
  const double x = args.x[i];
  if constexpr (kBackward) {
    args.out[i] = static_cast<T>(BackwardOne(x, args.dy[i], f));
  } else {
    args.out[i] = static_cast<T>(NormalizeOne(x, f));
  }
}

template <bool kBackward, typename T>
void MapRun(const MapArgs<T>& args, int64_t begin, const ChannelFactors& f) {
  const WideTag tag;
  const int64_t lanes = LaneCount();
  const int64_t end = begin + args.shape.inner;
  const Wide mean = hn::Set(tag, f.mean);
  const Wide scale = hn::Set(tag, f.scale);
  const Wide shift = hn::Set(tag, (kBackward ? f.dy_mean : f.beta));
  const Wide slope = hn::Set(tag, f.slope);
  int64_t i = begin;
  for (; i + lanes <= end; i += lanes) {
    MapVector<kBackward>(args, i, mean, scale, shift, slope);
  }
  for (; i < end; ++i) MapElement<kBackward>(args, i, f);
}

// The factors of every position of the period, a table each, so that they
// load as vectors.
struct FactorTables {
  explicit FactorTables(int64_t length)
      : mean(length), scale(length), shift(length), slope(length) {}

  ChannelFactors At(int64_t position) const {
    return {mean[position], scale[position], shift[position], shift[position],
            slope[position]};
  }

  std::vector<double> mean;
  std::vector<double> scale;
  std::vector<double> shift;
  std::vector<double> slope;
};

// Maps the first `n` positions of the row that starts at element `begin`.
template <bool kBackward, typename T>
HWY_INLINE void MapRow(const MapArgs<T>& args, int64_t begin, int64_t n,
                       const FactorTables& tables) {
  const int64_t lanes = LaneCount();
  const double* mean = tables.mean.data();
  const double* scale = tables.scale.data();
  const double* shift = tables.shift.data();
  const double* slope = tables.slope.data();
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    MapVector<kBackward>(args, begin + i, LoadWide(mean + i),
                         LoadWide(scale + i), LoadWide(shift + i),
                         LoadWide(slope + i));
  }
  for (; i < n; ++i) MapElement<kBackward>(args, begin + i, tables.At(i));
}

template <bool kBackward, typename T>
void Map(const MapArgs<T>& args, const std::vector<ChannelFactors>& factors) {
  const BatchShape& shape = args.shape;
  const Period period = ChoosePeriod(shape, LaneCount());
  if (period.length == 0) {
    for (int64_t o = 0; o < shape.outer; ++o) {
      for (int64_t c = 0; c < shape.channels; ++c) {
        const int64_t begin = (o * shape.channels + c) * shape.inner;
        MapRun<kBackward>(args, begin, factors[c]);
      }
    }
    return;
  }
  FactorTables tables(period.length);
  ForEachPosition(shape, period, [&](int64_t position, int64_t channel) {
    const ChannelFactors& f = factors[channel];
    tables.mean[position] = f.mean;
    tables.scale[position] = f.scale;
    tables.shift[position] = kBackward ? f.dy_mean : f.beta;
    tables.slope[position] = f.slope;
  });
  for (int64_t row = 0; row < period.rows; ++row) {
    MapRow<kBackward>(args, row * period.length, period.length, tables);
  }
  MapRow<kBackward>(args, period.rows * period.length, period.rest, tables);
}

template <typename T>
void NormalizeOf(const NormalizeArgs& args) {
  Map<false>(MapArgs<T>{args.shape, static_cast<const T*>(args.x), nullptr,
                        static_cast<T*>(args.y)},
             NormalizeFactors(args));
}

void NormalizeHere(const NormalizeArgs& args) {
  if (args.shape.count() == 0 || args.shape.channels == 0) return;
  if (args.type == DataType::kFloat32) {
    NormalizeOf<float>(args);
  } else {
    NormalizeOf<double>(args);
  }
}

template <typename T>
void BackwardElementwiseOf(const BackwardElementwiseArgs& args) {
  Map<true>(
      MapArgs<T>{args.shape, static_cast<const T*>(args.x),
                 static_cast<const T*>(args.dy), static_cast<T*>(args.dx)},
      BackwardFactors(args));
}

void BackwardElementwiseHere(const BackwardElementwiseArgs& args) {
  if (args.shape.count() == 0 || args.shape.channels == 0) return;
  if (args.type == DataType::kFloat32) {
    BackwardElementwiseOf<float>(args);
  } else {
    BackwardElementwiseOf<double>(args);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace cohort::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::kernels::cpu {

HWY_EXPORT(NormalizeHere);
HWY_EXPORT(BackwardElementwiseHere);

void Normalize(const NormalizeArgs& args) {
  HWY_DYNAMIC_DISPATCH(NormalizeHere)(args);
}

void BackwardElementwise(const BackwardElementwiseArgs& args) {
  HWY_DYNAMIC_DISPATCH(BackwardElementwiseHere)(args);
}

}  // namespace cohort::kernels::cpu
#endif  // HWY_ONCE
