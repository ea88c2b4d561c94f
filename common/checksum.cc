#include "common/checksum.h"

#include "absl/strings/str_cat.h"
#include "common/xxh3.h"

namespace cohort {

struct StreamingXxh3::State {
  XXH3_state_t xxh3;
};

StreamingXxh3::StreamingXxh3() : state_(std::make_unique<State>()) {
  XXH3_64bits_reset(&state_->xxh3);
}

StreamingXxh3::~StreamingXxh3() = default;
StreamingXxh3::StreamingXxh3(StreamingXxh3&&) noexcept = default;
StreamingXxh3& StreamingXxh3::operator=(StreamingXxh3&&) noexcept = default;

void StreamingXxh3::Update(absl::Span<const std::byte> bytes) {
  XXH3_64bits_update(&state_->xxh3, bytes.data(), bytes.size());
}

uint64_t StreamingXxh3::Digest() const {
  return XXH3_64bits_digest(&state_->xxh3);
}

std::string ChecksumText(uint64_t checksum) {
  return absl::StrCat(absl::Hex(checksum, absl::kZeroPad16));
}

}  // namespace cohort
