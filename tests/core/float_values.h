#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/float_buffer.h"

namespace cohort {

inline SharedFloats BufferOf(const std::vector<float>& values) {
  auto buffer =
      std::make_shared<FloatBuffer>(static_cast<int64_t>(values.size()));
  std::copy(values.begin(), values.end(), buffer->data());
  return buffer;
}

inline std::vector<float> ValuesOf(const SharedFloats& buffer) {
  return {buffer->span().begin(), buffer->span().end()};
}

}  // namespace cohort
