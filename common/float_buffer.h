#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "common/byte_rope.h"
#include "common/mutex.h"

namespace cohort {

// 64-byte aligned float32 memory. The caller that took it from the pool writes
// it once; then it is shared as `const` and never written again.
class FloatBuffer {
 public:
  explicit FloatBuffer(int64_t elements);
  FloatBuffer(const FloatBuffer&) = delete;
  FloatBuffer& operator=(const FloatBuffer&) = delete;
  ~FloatBuffer();

  int64_t size() const { return elements_; }
  float* data() { return data_; }
  const float* data() const { return data_; }
  absl::Span<const float> span() const {
    return absl::MakeConstSpan(data_, static_cast<size_t>(elements_));
  }
  absl::Span<float> mutable_span() {
    return absl::MakeSpan(data_, static_cast<size_t>(elements_));
  }

 private:
  float* data_ = nullptr;
  int64_t elements_ = 0;
};

using SharedFloats = std::shared_ptr<const FloatBuffer>;

// A rope over the buffer's bytes that keeps it alive.
ByteRope RopeOf(const SharedFloats& buffer);

// Recycles buffers, because mapping fresh pages for every version of the
// weights costs more than the arithmetic on them.
// Thread safety: safe. Buffers may outlive the pool.
class FloatBufferPool {
 public:
  FloatBufferPool();

  // A buffer of exactly `elements`; its contents are unspecified.
  std::shared_ptr<FloatBuffer> Take(int64_t elements);

 private:
  struct Shelf;
  // Shared with the buffers' deleters.
  std::shared_ptr<Shelf> shelf_;
};

}  // namespace cohort
