#pragma once

#include <cstdint>

namespace cohort {

// The layout of a field in an encoded protobuf message. Defined here because
// protobuf's own list is part of its internal headers, and because
// common/formats writes messages without protobuf.
// Source: protobuf.dev/programming-guides/encoding, "Message Structure".
enum class WireType : uint32_t {
  kVarint = 0,
  kFixed64 = 1,
  kLengthDelimited = 2,
  kStartGroup = 3,
  kEndGroup = 4,
  kFixed32 = 5,
};

// The tag that stands before each field, itself written as a varint.
constexpr uint32_t FieldTag(uint32_t field, WireType type) {
  return field << 3 | static_cast<uint32_t>(type);
}

// The type in `tag`; in a damaged message it may be none of the above.
constexpr WireType WireTypeOf(uint64_t tag) {
  return static_cast<WireType>(tag & 7);
}

}  // namespace cohort
