#include "common/float_buffer.h"

#include <map>
#include <new>
#include <utility>

namespace cohort {
namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

FloatBuffer::FloatBuffer(int64_t elements)
    : data_(static_cast<float*>(::operator new(
          static_cast<size_t>(elements) * sizeof(float), kAlignment))),
      elements_(elements) {}

FloatBuffer::~FloatBuffer() {
  if (!piece_.has_value()) ::operator delete(data_, kAlignment);
}

uint64_t FloatBuffer::Checksum() const {
  MutexLock lock(checksum_mu_);
  if (!checksum_.has_value()) {
    checksum_ = Xxh3(
        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(data_),
                            static_cast<size_t>(elements_) * sizeof(float)));
  }
  return *checksum_;
}

ByteRope RopeOf(const SharedFloats& buffer) {
  return ByteRope(
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(buffer->data()),
                          static_cast<size_t>(buffer->size()) * sizeof(float)),
      buffer);
}

// Buffers that are not in use.
struct FloatBufferPool::Shelf {
  using Buffers = std::map<int64_t, std::vector<std::unique_ptr<FloatBuffer>>>;

  Buffers& Of(bool shared) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return shared ? free_shared : free;
  }

  // Takes a buffer off the shelf; null if there is none.
  std::unique_ptr<FloatBuffer> Take(int64_t elements, bool shared)
      ABSL_LOCKS_EXCLUDED(mu) {
    MutexLock lock(mu);
    auto& buffers = Of(shared)[elements];
    if (buffers.empty()) return nullptr;
    std::unique_ptr<FloatBuffer> buffer = std::move(buffers.back());
    buffers.pop_back();
    return buffer;
  }

  Mutex mu;
  Buffers free ABSL_GUARDED_BY(mu);
  // Those whose memory came from `storage`.
  Buffers free_shared ABSL_GUARDED_BY(mu);
};

FloatBufferPool::FloatBufferPool(std::shared_ptr<FloatStorage> shared)
    : storage_(std::move(shared)), shelf_(std::make_shared<Shelf>()) {}

std::shared_ptr<FloatBuffer> FloatBufferPool::Take(int64_t elements) {
  std::unique_ptr<FloatBuffer> buffer =
      shelf_->Take(elements, /*shared=*/false);
  if (buffer == nullptr) buffer = std::make_unique<FloatBuffer>(elements);
  return Lent(std::move(buffer));
}

std::shared_ptr<FloatBuffer> FloatBufferPool::TakeShared(int64_t elements) {
  if (storage_ == nullptr) return Take(elements);
  std::unique_ptr<FloatBuffer> buffer = shelf_->Take(elements, /*shared=*/true);
  if (buffer == nullptr) {
    std::optional<FloatStorage::Piece> piece = storage_->Allocate(elements);
    if (!piece.has_value()) return Take(elements);
    buffer = std::make_unique<FloatBuffer>(elements, *std::move(piece));
  }
  return Lent(std::move(buffer));
}

std::shared_ptr<FloatBuffer> FloatBufferPool::Lent(
    std::unique_ptr<FloatBuffer> buffer) {
  {
    // The old contents had another one.
    MutexLock lock(buffer->checksum_mu_);
    buffer->checksum_.reset();
  }
  // A weak reference: a buffer that outlives its pool is simply freed.
  std::weak_ptr<Shelf> weak = shelf_;
  return std::shared_ptr<FloatBuffer>(
      buffer.release(), [weak](FloatBuffer* returned) {
        std::unique_ptr<FloatBuffer> owned(returned);
        if (std::shared_ptr<Shelf> shelf = weak.lock()) {
          MutexLock lock(shelf->mu);
          shelf->Of(owned->place().has_value())[owned->size()].push_back(
              std::move(owned));
        }
      });
}

}  // namespace cohort
