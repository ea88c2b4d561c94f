#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/types/span.h"

namespace cohort {

// XXH3-64 of bytes that arrive in pieces; equals Xxh3() of the whole, however
// it was cut.
// Thread safety: none.
class StreamingXxh3 {
 public:
  StreamingXxh3();
  ~StreamingXxh3();
  StreamingXxh3(StreamingXxh3&&) noexcept;
  StreamingXxh3& operator=(StreamingXxh3&&) noexcept;

  void Update(absl::Span<const std::byte> bytes);
  // Checksum of everything so far; more may follow.
  uint64_t Digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// 16 lower-case hexadecimal digits, the form in which checksums are written
// to files and shown.
std::string ChecksumText(uint64_t checksum);

}  // namespace cohort
