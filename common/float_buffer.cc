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

FloatBuffer::~FloatBuffer() { ::operator delete(data_, kAlignment); }

ByteRope RopeOf(const SharedFloats& buffer) {
  return ByteRope(
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(buffer->data()),
                          static_cast<size_t>(buffer->size()) * sizeof(float)),
      buffer);
}

struct FloatBufferPool::Shelf {
  Mutex mu;
  std::map<int64_t, std::vector<std::unique_ptr<FloatBuffer>>> free
      ABSL_GUARDED_BY(mu);
};

FloatBufferPool::FloatBufferPool() : shelf_(std::make_shared<Shelf>()) {}

std::shared_ptr<FloatBuffer> FloatBufferPool::Take(int64_t elements) {
  std::unique_ptr<FloatBuffer> buffer;
  {
    MutexLock lock(shelf_->mu);
    auto& free = shelf_->free[elements];
    if (!free.empty()) {
      buffer = std::move(free.back());
      free.pop_back();
    }
  }
  if (buffer == nullptr) buffer = std::make_unique<FloatBuffer>(elements);
  // A weak reference: a buffer that outlives its pool is simply freed.
  std::weak_ptr<Shelf> weak = shelf_;
  return std::shared_ptr<FloatBuffer>(
      buffer.release(), [weak](FloatBuffer* returned) {
        std::unique_ptr<FloatBuffer> owned(returned);
        if (std::shared_ptr<Shelf> shelf = weak.lock()) {
          MutexLock lock(shelf->mu);
          shelf->free[owned->size()].push_back(std::move(owned));
        }
      });
}

}  // namespace cohort
