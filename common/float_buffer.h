#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/byte_rope.h"
#include "common/mutex.h"

namespace cohort {

// Where memory lies that other processes of this host may read too: a file,
// numbered by its FloatStorage, and a byte in it.
struct SharedPlace {
  int32_t file = 0;
  int64_t offset = 0;

  friend bool operator==(const SharedPlace&, const SharedPlace&) = default;
};

// Gives memory to buffers.
// Thread safety: safe.
class FloatStorage {
 public:
  struct Piece {
    // 64-byte aligned.
    float* data = nullptr;
    SharedPlace place;
    // Keeps the memory.
    std::shared_ptr<void> owner;
  };

  virtual ~FloatStorage() = default;
  // Absent if there is no memory of this kind.
  virtual std::optional<Piece> Allocate(int64_t elements) = 0;
};

// 64-byte aligned float32 memory. The caller that took it from the pool writes
// it once; then it is shared as `const` and never written again.
class FloatBuffer {
 public:
  explicit FloatBuffer(int64_t elements);
  FloatBuffer(int64_t elements, FloatStorage::Piece piece)
      : data_(piece.data), elements_(elements), piece_(std::move(piece)) {}
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

  // XXH3-64 of the contents, computed when it is first asked for. Only of a
  // buffer that is shared by now.
  uint64_t Checksum() const;

  // Absent if no other process can read it.
  std::optional<SharedPlace> place() const {
    if (!piece_.has_value()) return std::nullopt;
    return piece_->place;
  }

 private:
  friend class FloatBufferPool;

  float* data_ = nullptr;
  int64_t elements_ = 0;
  // Computed under the lock, so that two streams do not both do it.
  mutable Mutex checksum_mu_;
  mutable std::optional<uint64_t> checksum_ ABSL_GUARDED_BY(checksum_mu_);
  // Absent if the buffer owns its memory itself.
  std::optional<FloatStorage::Piece> piece_;
};

using SharedFloats = std::shared_ptr<const FloatBuffer>;

// A rope over the buffer's bytes that keeps it alive.
ByteRope RopeOf(const SharedFloats& buffer);

// Recycles buffers, because mapping fresh pages for every version of the
// weights costs more than the arithmetic on them.
// Thread safety: safe. Buffers may outlive the pool.
class FloatBufferPool {
 public:
  // `shared` gives the memory for TakeShared; null: there is none of its kind.
  explicit FloatBufferPool(std::shared_ptr<FloatStorage> shared = nullptr);

  // A buffer of exactly `elements`; its contents are unspecified.
  std::shared_ptr<FloatBuffer> Take(int64_t elements);
  // The same for weights, which other processes may read where they lie.
  std::shared_ptr<FloatBuffer> TakeShared(int64_t elements);

 private:
  struct Shelf;
  // Returns to the shelf when its last owner lets go of it.
  std::shared_ptr<FloatBuffer> Lent(std::unique_ptr<FloatBuffer> buffer);

  // Null if there is none.
  const std::shared_ptr<FloatStorage> storage_;
  // Shared with the buffers' deleters.
  std::shared_ptr<Shelf> shelf_;
};

}  // namespace cohort
