#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/batch_norm_args.h"
#include "kernels/data_type.h"

namespace cohort::kernels {

// Repeatable numbers, equal on every standard library.
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : state_(seed) {}

  // Uniform in [-1, 1). (splitmix64)
  double Next() {
    state_ += 0x9e3779b97f4a7c15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    z ^= z >> 31;
    return static_cast<double>(z >> 11) * 0x1p-52 - 1;
  }

  template <typename T>
  std::vector<T> Take(int64_t count, double mean = 0, double amplitude = 1) {
    std::vector<T> values(count);
    for (T& value : values) {
      value = static_cast<T>(mean + amplitude * Next());
    }
    return values;
  }

 private:
  uint64_t state_;
};

template <typename T>
constexpr DataType TypeOf() {
  if (std::is_same_v<T, Float16>) return DataType::kFloat16;
  if (std::is_same_v<T, BFloat16>) return DataType::kBFloat16;
  return sizeof(T) == sizeof(float) ? DataType::kFloat32 : DataType::kFloat64;
}

// Calls f(std::type_identity<T>()) for the four types of tensors.
template <typename F>
void ForEachType(F f) {
  f(std::type_identity<float>());
  f(std::type_identity<double>());
  f(std::type_identity<Float16>());
  f(std::type_identity<BFloat16>());
}

// The largest error of rounding `value` to T: half an ulp, or half of the
// smallest number near zero. Types of two bytes are rounded to float32 first,
// which may move the value across a tie: by 2^-24 of it.
template <typename T>
long double RoundingError(long double value) {
  const long double size = std::abs(value);
  if (std::is_same_v<T, double>) return std::max(size * 0x1p-53L, 0x1p-1075L);
  if (std::is_same_v<T, float>) return std::max(size * 0x1p-24L, 0x1p-150L);
  const bool brain = std::is_same_v<T, BFloat16>;
  return size * 0x1p-24L + std::max(size * (brain ? 0x1p-8L : 0x1p-11L),
                                    brain ? 0x1p-134L : 0x1p-25L);
}

// Half an ulp of T once, for the answer, and at most eight roundings of
// float64 on the way, each of a value no larger than `magnitude`.
template <typename T>
bool Near(T got, long double want, long double magnitude) {
  return std::abs(static_cast<double>(got) - want) <=
         RoundingError<T>(want) * 1.0001L + 8 * 0x1p-53L * magnitude;
}

inline int64_t Elements(const BatchShape& shape) {
  return shape.count() * shape.channels;
}

inline int64_t ChannelOf(const BatchShape& shape, int64_t element) {
  return element / shape.inner % shape.channels;
}

// Two numbers a channel: (mean, M2), or (sum dy, sum dy*(x-mean)).
struct Pairs {
  std::vector<double> first;
  std::vector<double> second;

  friend bool operator==(const Pairs&, const Pairs&) = default;
};

// The oracle of moments.
struct ExactMoments {
  std::vector<long double> mean;
  std::vector<long double> m2;
};

template <typename T>
ExactMoments TwoPassMoments(const BatchShape& shape,
                            const std::vector<T>& values) {
  std::vector<long double> mean(shape.channels), m2(shape.channels);
  for (int64_t i = 0; i < Elements(shape); ++i) {
    mean[ChannelOf(shape, i)] += static_cast<double>(values[i]);
  }
  for (long double& m : mean) m /= shape.count();
  for (int64_t i = 0; i < Elements(shape); ++i) {
    const int64_t c = ChannelOf(shape, i);
    const long double d = static_cast<double>(values[i]) - mean[c];
    m2[c] += d * d;
  }
  return {mean, m2};
}

inline std::string Describe(const BatchShape& shape) {
  return absl::StrCat("[", shape.outer, "][", shape.channels, "][", shape.inner,
                      "]");
}

// Channels and runs around the widths of vectors, rows of every layout;
// together some seconds of plain loops.
inline std::vector<BatchShape> InterestingShapes() {
  std::vector<BatchShape> shapes;
  for (int64_t channels : {1, 3, 64, 65, 100, 2049}) {
    for (int64_t inner : {1, 7, 49, 1000}) {
      const int64_t sample = channels * inner;
      const int64_t outer = inner == 1 ? 203 : (sample > 100000 ? 1 : 5);
      shapes.push_back({.outer = outer, .channels = channels, .inner = inner});
    }
  }
  // One element a channel.
  shapes.push_back({.outer = 1, .channels = 65, .inner = 1});
  // Fewer elements than a vector has lanes, and fewer rows than a period.
  shapes.push_back({.outer = 1, .channels = 1, .inner = 1});
  shapes.push_back({.outer = 1, .channels = 2, .inner = 3});
  shapes.push_back({.outer = 2, .channels = 5, .inner = 1});
  return shapes;
}

}  // namespace cohort::kernels
