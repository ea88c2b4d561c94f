#include "common/stream_copy.h"

#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/check.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace cohort {
namespace {

#if defined(__SSE2__)

constexpr size_t kLine = 64;
// Smaller copies stay in the second-level cache.
constexpr size_t kStreamedMin = size_t{256} << 10;

// Copies whole lines to an aligned address.
void StreamLines(const std::byte* from, std::byte* to, size_t lines) {
  for (size_t i = 0; i < lines; ++i, from += kLine, to += kLine) {
    const auto* in = reinterpret_cast<const __m128i*>(from);
    auto* out = reinterpret_cast<__m128i*>(to);
    const __m128i first = _mm_loadu_si128(in);
    const __m128i second = _mm_loadu_si128(in + 1);
    const __m128i third = _mm_loadu_si128(in + 2);
    const __m128i fourth = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, first);
    _mm_stream_si128(out + 1, second);
    _mm_stream_si128(out + 2, third);
    _mm_stream_si128(out + 3, fourth);
  }
  // Other threads may learn of these bytes by an ordinary store.
  _mm_sfence();
}

#endif

}  // namespace

void StreamCopy(absl::Span<const std::byte> from, absl::Span<std::byte> to) {
  COHORT_CHECK(from.size() == to.size(),
               absl::StrCat("got ", from.size(), " bytes for ", to.size()));
  if (from.empty()) return;
#if defined(__SSE2__)
  if (from.size() >= kStreamedMin) {
    const size_t past = reinterpret_cast<uintptr_t>(to.data()) % kLine;
    const size_t head = (kLine - past) % kLine;
    std::memcpy(to.data(), from.data(), head);
    const size_t lines = (from.size() - head) / kLine;
    StreamLines(from.data() + head, to.data() + head, lines);
    from.remove_prefix(head + lines * kLine);
    to.remove_prefix(head + lines * kLine);
  }
#endif
  std::memcpy(to.data(), from.data(), from.size());
}

}  // namespace cohort
