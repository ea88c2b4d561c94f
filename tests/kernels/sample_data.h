#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/backend.h"

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
  return sizeof(T) == sizeof(float) ? DataType::kFloat32 : DataType::kFloat64;
}

inline int64_t Elements(const BatchShape& shape) {
  return shape.count() * shape.channels;
}

inline int64_t ChannelOf(const BatchShape& shape, int64_t element) {
  return element / shape.inner % shape.channels;
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
  // Fewer elements than a vector has lanes, and fewer rows than a period.
  shapes.push_back({.outer = 1, .channels = 1, .inner = 1});
  shapes.push_back({.outer = 1, .channels = 2, .inner = 3});
  shapes.push_back({.outer = 2, .channels = 5, .inner = 1});
  return shapes;
}

}  // namespace cohort::kernels
