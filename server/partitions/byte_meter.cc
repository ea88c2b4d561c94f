#include "server/partitions/byte_meter.h"

#include <utility>

namespace cohort {
namespace {

using ByteCounter = std::shared_ptr<std::atomic<int64_t>>;

// Subtracts the bytes from the count when the last piece is destroyed.
class CountedRope {
 public:
  CountedRope(ByteRope rope, ByteCounter counter)
      : rope_(std::move(rope)), counter_(std::move(counter)) {
    counter_->fetch_add(rope_.size_bytes(), std::memory_order_relaxed);
  }
  CountedRope(const CountedRope&) = delete;
  CountedRope& operator=(const CountedRope&) = delete;
  ~CountedRope() {
    counter_->fetch_sub(rope_.size_bytes(), std::memory_order_relaxed);
  }

  const ByteRope& rope() const { return rope_; }

 private:
  const ByteRope rope_;
  const ByteCounter counter_;
};

}  // namespace

ByteRope ByteMeter::Count(ByteRope rope) {
  auto held = std::make_shared<const CountedRope>(std::move(rope), held_bytes_);
  ByteRope counted;
  for (const ByteRope::Piece& piece : held->rope().pieces()) {
    counted.Append(piece.bytes, held);
  }
  return counted;
}

}  // namespace cohort
