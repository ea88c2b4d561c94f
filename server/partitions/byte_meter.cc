#include "server/partitions/byte_meter.h"

#include <utility>

namespace cohort {

ByteRope ByteMeter::Count(ByteRope rope) {
  held_bytes_->fetch_add(rope.size_bytes(), std::memory_order_relaxed);
  // Subtracts the bytes again when the last piece is destroyed.
  const std::shared_ptr<const ByteRope> held(
      new ByteRope(std::move(rope)), [counter = held_bytes_](ByteRope* last) {
        counter->fetch_sub(last->size_bytes(), std::memory_order_relaxed);
        delete last;
      });
  ByteRope counted;
  for (const ByteRope::Piece& piece : held->pieces()) {
    counted.Append(piece.bytes, held);
  }
  return counted;
}

}  // namespace cohort
