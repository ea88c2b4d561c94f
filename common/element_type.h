#pragma once

#include <cstdint>

namespace cohort {

// How the elements of a gradient are encoded while they travel and are held.
// Arithmetic is never done in kBFloat16: it is expanded first, which is exact.
enum class ElementType { kFloat32, kBFloat16 };

// Size of one element.
constexpr int64_t BytesOf(ElementType type) {
  return type == ElementType::kBFloat16 ? 2 : 4;
}

}  // namespace cohort
