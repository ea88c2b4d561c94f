#include "server/service/byte_budget.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace cohort {
namespace {

using Counter = std::shared_ptr<std::atomic<int64_t>>;

// Gives the bytes back when the last piece is gone.
class Held {
 public:
  Held(ByteRope rope, Counter counter)
      : rope_(std::move(rope)), counter_(std::move(counter)) {}
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    counter_->fetch_sub(rope_.size_bytes(), std::memory_order_relaxed);
  }

  const ByteRope& rope() const { return rope_; }

 private:
  const ByteRope rope_;
  const Counter counter_;
};

}  // namespace

ByteBudget::ByteBudget(int64_t limit_bytes)
    : limit_bytes_(limit_bytes),
      held_bytes_(std::make_shared<std::atomic<int64_t>>(0)) {}

absl::StatusOr<ByteRope> ByteBudget::Admit(ByteRope rope) {
  const int64_t bytes = rope.size_bytes();
  const int64_t before =
      held_bytes_->fetch_add(bytes, std::memory_order_relaxed);
  if (before + bytes > limit_bytes_) {
    held_bytes_->fetch_sub(bytes, std::memory_order_relaxed);
    return absl::ResourceExhaustedError(absl::StrCat(
        "gradients in flight: got ", bytes, " bytes on top of ", before,
        ", want at most ", limit_bytes_, " (--inflight_mib)"));
  }
  auto held = std::make_shared<const Held>(std::move(rope), held_bytes_);
  ByteRope counted;
  for (const ByteRope::Piece& piece : held->rope().pieces()) {
    counted.Append(piece.bytes, held);
  }
  return counted;
}

int64_t ByteBudget::held_bytes() const {
  return held_bytes_->load(std::memory_order_relaxed);
}

}  // namespace cohort
