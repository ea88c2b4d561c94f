#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace cohort {

// Bytes of a tensor where they already lie: one or more pieces, each kept
// alive by the owner of its memory (a received network slice, a weights
// buffer). Copying a rope copies references, never bytes. No piece is
// aligned to anything.
class ByteRope {
 public:
  struct Piece {
    absl::Span<const std::byte> bytes;
    std::shared_ptr<const void> owner;
  };

  ByteRope() = default;
  ByteRope(absl::Span<const std::byte> bytes,
           std::shared_ptr<const void> owner);

  // A rope over a private copy of `bytes`.
  static ByteRope Copy(absl::Span<const std::byte> bytes);
  // A rope over a private copy of the bytes of `text`.
  static ByteRope CopyText(absl::string_view text);

  // Adds a piece at the end; empty pieces are ignored.
  void Append(absl::Span<const std::byte> bytes,
              std::shared_ptr<const void> owner);

  int64_t size_bytes() const { return size_bytes_; }
  absl::Span<const Piece> pieces() const { return pieces_; }

  // Copies all bytes, in order, to `out`, whose size must be size_bytes().
  void CopyTo(absl::Span<std::byte> out) const;
  std::string ToString() const;

  // XXH3-64 of the whole, independent of how it is cut into pieces.
  uint64_t Checksum() const;
  // XXH3-64 of the size and of 1 KiB in 16, from the front; independent of the
  // pieces too. Tells results of different computations apart, whose bits
  // differ in many places, and costs little; does not find a flipped bit.
  uint64_t SampledChecksum() const;

 private:
  std::vector<Piece> pieces_;
  int64_t size_bytes_ = 0;
};

// XXH3-64 of contiguous bytes; equals ByteRope::Checksum of the same bytes.
uint64_t Xxh3(absl::Span<const std::byte> bytes);

// Reads a rope from front to back, wherever its pieces end.
//
// Reading more than remaining_bytes() is a caller bug.
class RopeReader {
 public:
  // `rope` must outlive the reader.
  explicit RopeReader(const ByteRope& rope)
      : pieces_(rope.pieces()), remaining_bytes_(rope.size_bytes()) {}

  int64_t remaining_bytes() const { return remaining_bytes_; }
  // Bytes left in the current piece; 0 at the end.
  int64_t contiguous_bytes() const {
    if (pieces_.empty()) return 0;
    return static_cast<int64_t>(pieces_.front().bytes.size() - offset_);
  }

  // The next `bytes` bytes in one place: where they lie if one piece holds
  // them all, else copied to `scratch`. They have no alignment. Does not move
  // the reader.
  const std::byte* Peek(int64_t bytes, std::byte* scratch) const;
  // Copies the next `bytes` bytes to `to` and moves behind them.
  void Read(void* to, int64_t bytes);
  void Skip(int64_t bytes);

 private:
  // Calls `body` with the next `bytes` bytes, piece by piece, and moves behind
  // them.
  template <typename Body>
  void Consume(int64_t bytes, Body body);

  absl::Span<const ByteRope::Piece> pieces_;
  // Bytes of the first piece that are behind the reader.
  size_t offset_ = 0;
  int64_t remaining_bytes_ = 0;
};

}  // namespace cohort
