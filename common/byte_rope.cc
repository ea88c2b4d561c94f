#include "common/byte_rope.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/stream_copy.h"
#include "common/xxh3.h"

namespace cohort {
ByteRope::ByteRope(absl::Span<const std::byte> bytes,
                   std::shared_ptr<const void> owner) {
  Append(bytes, std::move(owner));
}

ByteRope ByteRope::Copy(absl::Span<const std::byte> bytes) {
  auto copy =
      std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
  return ByteRope(absl::MakeConstSpan(*copy), copy);
}

ByteRope ByteRope::CopyText(absl::string_view text) {
  return Copy(absl::MakeConstSpan(
      reinterpret_cast<const std::byte*>(text.data()), text.size()));
}

void ByteRope::Append(absl::Span<const std::byte> bytes,
                      std::shared_ptr<const void> owner) {
  if (bytes.empty()) return;
  size_bytes_ += static_cast<int64_t>(bytes.size());
  pieces_.push_back({bytes, std::move(owner)});
}

void ByteRope::CopyTo(absl::Span<std::byte> out) const {
  COHORT_CHECK(static_cast<int64_t>(out.size()) == size_bytes_,
               absl::StrCat("got ", out.size(), " bytes, want ", size_bytes_));
  for (const Piece& piece : pieces_) {
    StreamCopy(piece.bytes, out.first(piece.bytes.size()));
    out.remove_prefix(piece.bytes.size());
  }
}

std::string ByteRope::ToString() const {
  std::string out(static_cast<size_t>(size_bytes_), '\0');
  CopyTo(absl::MakeSpan(reinterpret_cast<std::byte*>(out.data()), out.size()));
  return out;
}

uint64_t ByteRope::SampledChecksum() const {
  // Repetitions of a push are compared by this sum. Hashes of whole gradients
  // took a large part of a step over shared memory.
  constexpr int64_t kSample = int64_t{1} << 10;
  constexpr int64_t kStride = int64_t{16} << 10;
  std::byte scratch[kSample];
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  XXH3_64bits_update(&state, &size_bytes_, sizeof(size_bytes_));
  RopeReader reader(*this);
  while (reader.remaining_bytes() > 0) {
    const int64_t sample = std::min(kSample, reader.remaining_bytes());
    XXH3_64bits_update(&state, reader.Peek(sample, scratch),
                       static_cast<size_t>(sample));
    reader.Skip(std::min(kStride, reader.remaining_bytes()));
  }
  return XXH3_64bits_digest(&state);
}

uint64_t ByteRope::Checksum() const {
  if (pieces_.size() == 1) return Xxh3(pieces_[0].bytes);
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (const Piece& piece : pieces_) {
    XXH3_64bits_update(&state, piece.bytes.data(), piece.bytes.size());
  }
  return XXH3_64bits_digest(&state);
}

uint64_t Xxh3(absl::Span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

template <typename Body>
void RopeReader::Consume(int64_t bytes, Body body) {
  COHORT_CHECK(bytes <= remaining_bytes_,
               absl::StrCat("got ", remaining_bytes_, " bytes, want ", bytes));
  remaining_bytes_ -= bytes;
  for (auto left = static_cast<size_t>(bytes); left > 0;) {
    const auto part = pieces_.front().bytes.subspan(offset_, left);
    body(part);
    left -= part.size();
    offset_ += part.size();
    if (offset_ == pieces_.front().bytes.size()) {
      pieces_.remove_prefix(1);
      offset_ = 0;
    }
  }
}

const std::byte* RopeReader::Peek(int64_t bytes, std::byte* scratch) const {
  if (bytes == 0) return scratch;
  COHORT_CHECK(bytes <= remaining_bytes_,
               absl::StrCat("got ", remaining_bytes_, " bytes, want ", bytes));
  const auto in_piece = pieces_.front().bytes.subspan(offset_);
  if (static_cast<int64_t>(in_piece.size()) >= bytes) return in_piece.data();
  RopeReader ahead = *this;
  ahead.Read(scratch, bytes);
  return scratch;
}

void RopeReader::Read(void* to, int64_t bytes) {
  Consume(bytes, [at = static_cast<std::byte*>(to)](
                     absl::Span<const std::byte> part) mutable {
    std::memcpy(at, part.data(), part.size());
    at += part.size();
  });
}

void RopeReader::Skip(int64_t bytes) {
  Consume(bytes, [](absl::Span<const std::byte>) {});
}

}  // namespace cohort
