#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/half.h"

namespace cohort::kernels {

// kFloat16 is IEEE binary16.
enum class DataType { kFloat32, kFloat64, kFloat16, kBFloat16 };

// Calls f(std::type_identity<T>()), T being the type that `type` names.
template <typename F>
auto VisitType(DataType type, F f) {
  switch (type) {
    case DataType::kFloat64:
      return f(std::type_identity<double>());
    case DataType::kFloat16:
      return f(std::type_identity<Float16>());
    case DataType::kBFloat16:
      return f(std::type_identity<BFloat16>());
    case DataType::kFloat32:
      break;
  }
  return f(std::type_identity<float>());
}

// The largest float64 that becomes 0 in T, by way of float32 for the types of
// two bytes: half of T's smallest number, and where that is not float32's
// smallest, what float32 rounds to it. A ReLU passes exactly what is above.
template <typename T>
inline constexpr double kRoundsToZero = 0;
template <>
inline constexpr double kRoundsToZero<float> = 0x1p-150;
template <>
inline constexpr double kRoundsToZero<Float16> = 0x1p-25 + 0x1p-49;
template <>
inline constexpr double kRoundsToZero<BFloat16> = 0x1p-134 + 0x1p-150;

}  // namespace cohort::kernels
