#include "common/wire/encoding.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/bfloat16.h"
#include "common/wire/field_checks.h"

namespace cohort {

using wire_internal::Refuse;

namespace {

constexpr int64_t kFloatBytes = BytesOf(ElementType::kFloat32);
constexpr int64_t kHalfBytes = BytesOf(ElementType::kBFloat16);

ByteRope RoundedToBFloat16(const ByteRope& floats) {
  const int64_t count = floats.size_bytes() / kFloatBytes;
  const auto size = static_cast<size_t>(count * kHalfBytes);
  // Not set to zeros first: every byte is written below.
  auto bytes = std::make_shared_for_overwrite<std::byte[]>(size);
  RopeReader reader(floats);
  for (int64_t done = 0; done < count;) {
    // A float that a piece boundary cuts in two is read by itself.
    std::byte cut[kFloatBytes];
    const int64_t whole =
        std::max<int64_t>(1, reader.contiguous_bytes() / kFloatBytes);
    RoundToBFloat16(reader.Peek(whole * kFloatBytes, cut), whole,
                    bytes.get() + done * kHalfBytes);
    reader.Skip(whole * kFloatBytes);
    done += whole;
  }
  const absl::Span<const std::byte> span(bytes.get(), size);
  return ByteRope(span, std::move(bytes));
}

}  // namespace

v1::Encoding EncodingOf(ElementType type) {
  return type == ElementType::kBFloat16 ? v1::ENCODING_BFLOAT16
                                        : v1::ENCODING_FLOAT32;
}

absl::StatusOr<ElementType> ElementTypeOf(v1::Encoding encoding) {
  switch (encoding) {
    case v1::ENCODING_FLOAT32:
      return ElementType::kFloat32;
    case v1::ENCODING_BFLOAT16:
      return ElementType::kBFloat16;
    default:
      return Refuse("encoding", static_cast<int>(encoding),
                    "float32 or bfloat16");
  }
}

absl::StatusOr<SharedFloats> AddChange(const ByteRope& base,
                                       const ByteRope& change,
                                       FloatBufferPool& pool) {
  const int64_t count = base.size_bytes() / kFloatBytes;
  if (base.size_bytes() % kFloatBytes != 0 ||
      change.size_bytes() != count * kHalfBytes) {
    return Refuse("change", absl::StrCat(change.size_bytes(), " bytes"),
                  absl::StrCat(count * kHalfBytes));
  }
  std::shared_ptr<FloatBuffer> sums = pool.Take(count);
  RopeReader floats(base);
  RopeReader halves(change);
  for (int64_t done = 0; done < count;) {
    std::byte cut_float[kFloatBytes];
    std::byte cut_half[kHalfBytes];
    // An element that a piece boundary cuts in two is added by itself.
    const int64_t run =
        std::max<int64_t>(1, std::min(floats.contiguous_bytes() / kFloatBytes,
                                      halves.contiguous_bytes() / kHalfBytes));
    AddBFloat16(floats.Peek(run * kFloatBytes, cut_float),
                halves.Peek(run * kHalfBytes, cut_half), run,
                sums->data() + done);
    floats.Skip(run * kFloatBytes);
    halves.Skip(run * kHalfBytes);
    done += run;
  }
  return SharedFloats(std::move(sums));
}

ByteRope EncodeGradient(const ByteRope& floats, ElementType type) {
  return type == ElementType::kBFloat16 ? RoundedToBFloat16(floats) : floats;
}

}  // namespace cohort
