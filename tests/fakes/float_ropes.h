#pragma once

#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "common/byte_rope.h"

namespace cohort {

// A rope over a copy of `values`.
template <typename T = float>
ByteRope RopeOver(const std::vector<T>& values) {
  return ByteRope::Copy(
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()),
                          values.size() * sizeof(T)));
}

// The bytes of `values`, cut before the given byte offsets. Every piece has its
// own copy, so that the sanitizer sees reads beyond a piece.
inline ByteRope CutAt(const std::vector<float>& values,
                      const std::vector<size_t>& cuts) {
  const auto bytes =
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()),
                          values.size() * sizeof(float));
  ByteRope rope;
  size_t begin = 0;
  const auto add = [&](size_t end) {
    const ByteRope copy = ByteRope::Copy(bytes.subspan(begin, end - begin));
    for (const ByteRope::Piece& piece : copy.pieces()) {
      rope.Append(piece.bytes, piece.owner);
    }
    begin = end;
  };
  for (size_t cut : cuts) add(cut);
  add(bytes.size());
  return rope;
}

// The bytes of `values` in pieces of 1, 2, ... `longest`, 1, 2, ... bytes.
inline ByteRope CutRope(const std::vector<float>& values, size_t longest) {
  std::vector<size_t> cuts;
  size_t size = 1;
  for (size_t end = 1; end < values.size() * sizeof(float); end += size) {
    cuts.push_back(end);
    size = size % longest + 1;
  }
  return CutAt(values, cuts);
}

}  // namespace cohort
