#include "common/wire/framed_message.h"

#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/protobuf_encoding.h"

namespace cohort {
namespace {

using google::protobuf::io::CodedOutputStream;
using Owner = std::shared_ptr<const void>;

constexpr uint32_t kPayloadTag =
    FieldTag(kPayloadField, WireType::kLengthDelimited);
// Ten groups of seven bits hold 64 bits.
constexpr int kVarintBytesMax = 10;

void ReleaseOwner(void* owner) { delete static_cast<Owner*>(owner); }

grpc::Slice ReferencingSlice(const ByteRope::Piece& piece) {
  // gRPC takes a pointer to mutable bytes but only reads the bytes it sends.
  void* bytes = const_cast<std::byte*>(piece.bytes.data());
  return grpc::Slice(bytes, piece.bytes.size(), &ReleaseOwner,
                     new Owner(piece.owner));
}

grpc::Slice HeaderSlice(const google::protobuf::MessageLite& header,
                        int64_t payload_bytes) {
  const size_t header_bytes = header.ByteSizeLong();
  const uint64_t length = static_cast<uint64_t>(payload_bytes);
  const size_t tail_bytes =
      payload_bytes == 0 ? 0 : 1 + CodedOutputStream::VarintSize64(length);
  grpc::Slice slice(header_bytes + tail_bytes);
  uint8_t* out = const_cast<uint8_t*>(slice.begin());
  out = header.SerializeWithCachedSizesToArray(out);
  if (tail_bytes > 0) {
    *out++ = static_cast<uint8_t>(kPayloadTag);
    CodedOutputStream::WriteVarint64ToArray(length, out);
  }
  return slice;
}

// Walks over the bytes of a message that lies in several slices.
class SliceCursor {
 public:
  explicit SliceCursor(const std::vector<grpc::Slice>& slices)
      : slices_(slices) {
    for (const grpc::Slice& slice : slices) remaining_ += slice.size();
  }

  size_t remaining() const { return remaining_; }

  // False if the message ends first, or after ten bytes without an end.
  bool ReadVarint(uint64_t* value) {
    *value = 0;
    for (int i = 0; i < kVarintBytesMax; ++i) {
      if (remaining_ == 0) return false;
      SkipEmptySlices();
      const uint8_t byte = slices_[slice_].begin()[offset_];
      Advance(1);
      *value |= static_cast<uint64_t>(byte & 0x7f) << (7 * i);
      if ((byte & 0x80) == 0) return true;
    }
    return false;
  }

  bool Skip(uint64_t bytes) {
    if (bytes > remaining_) return false;
    Advance(static_cast<size_t>(bytes));
    return true;
  }

  // The bytes not yet read, as pieces that all share `owner`.
  ByteRope Rest(const Owner& owner) const {
    ByteRope rest;
    size_t offset = offset_;
    for (size_t i = slice_; i < slices_.size(); ++i, offset = 0) {
      const auto* begin =
          reinterpret_cast<const std::byte*>(slices_[i].begin());
      rest.Append(
          absl::MakeConstSpan(begin + offset, slices_[i].size() - offset),
          owner);
    }
    return rest;
  }

 private:
  void SkipEmptySlices() {
    while (offset_ == slices_[slice_].size()) {
      ++slice_;
      offset_ = 0;
    }
  }

  void Advance(size_t bytes) {
    remaining_ -= bytes;
    while (bytes > 0) {
      SkipEmptySlices();
      const size_t step = std::min(bytes, slices_[slice_].size() - offset_);
      offset_ += step;
      bytes -= step;
    }
  }

  const std::vector<grpc::Slice>& slices_;
  size_t slice_ = 0;
  size_t offset_ = 0;
  size_t remaining_ = 0;
};

constexpr absl::string_view kDamaged =
    ": the message was damaged in transit, or its sender does not speak this "
    "protocol";

enum class Scan {
  // The cursor is at the payload, which is the rest of the message.
  kPayloadIsRest,
  kNoPayload,
  kNeedsFullParse,
  kMalformed,
};

// Reads past one field that is not the payload.
bool SkipField(uint64_t tag, SliceCursor& cursor) {
  uint64_t value = 0;
  switch (WireTypeOf(tag)) {
    case WireType::kVarint:
      return cursor.ReadVarint(&value);
    case WireType::kFixed64:
      return cursor.Skip(8);
    case WireType::kFixed32:
      return cursor.Skip(4);
    case WireType::kLengthDelimited:
      return cursor.ReadVarint(&value) && cursor.Skip(value);
    default:
      return false;
  }
}

// Searches for the payload and sets `header_bytes` to the number of bytes
// before it.
Scan ScanFields(SliceCursor& cursor, size_t total, size_t* header_bytes) {
  while (cursor.remaining() > 0) {
    *header_bytes = total - cursor.remaining();
    uint64_t tag = 0;
    if (!cursor.ReadVarint(&tag) || tag > UINT32_MAX || (tag >> 3) == 0) {
      return Scan::kMalformed;
    }
    const WireType type = WireTypeOf(tag);
    if (type == WireType::kStartGroup || type == WireType::kEndGroup) {
      return Scan::kNeedsFullParse;
    }
    if (tag != kPayloadTag) {
      if (!SkipField(tag, cursor)) return Scan::kMalformed;
      continue;
    }
    uint64_t length = 0;
    if (!cursor.ReadVarint(&length) || length > cursor.remaining()) {
      return Scan::kMalformed;
    }
    return length == cursor.remaining() ? Scan::kPayloadIsRest
                                        : Scan::kNeedsFullParse;
  }
  *header_bytes = total;
  return Scan::kNoPayload;
}

// The first `size` bytes as one piece: in place if they are in the first slice;
// otherwise a copy, which becomes `*owner`.
absl::string_view Flatten(const std::vector<grpc::Slice>& slices, size_t size,
                          Owner* owner) {
  if (size == 0) return absl::string_view();
  if (slices[0].size() >= size) {
    return absl::string_view(reinterpret_cast<const char*>(slices[0].begin()),
                             size);
  }
  auto copy = std::make_shared<std::string>();
  copy->reserve(size);
  for (const grpc::Slice& slice : slices) {
    const size_t take = std::min(slice.size(), size - copy->size());
    copy->append(reinterpret_cast<const char*>(slice.begin()), take);
  }
  const absl::string_view flat(*copy);
  *owner = std::move(copy);
  return flat;
}

}  // namespace

grpc::ByteBuffer EncodeFrame(const google::protobuf::MessageLite& header,
                             const ByteRope& payload) {
  std::vector<grpc::Slice> slices;
  slices.reserve(1 + payload.pieces().size());
  slices.push_back(HeaderSlice(header, payload.size_bytes()));
  for (const ByteRope::Piece& piece : payload.pieces()) {
    slices.push_back(ReferencingSlice(piece));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

absl::Status NotAMessage(const grpc::ByteBuffer& bytes,
                         absl::string_view name) {
  return absl::DataLossError(absl::StrCat(
      "got ", bytes.Length(), " bytes that are not a valid ", name, kDamaged));
}

absl::StatusOr<FrameParts> SplitFrame(const grpc::ByteBuffer& message) {
  // Short slices store their bytes inside the Slice object, so pieces may only
  // point into objects that stay alive: one vector, shared by all pieces.
  auto slices = std::make_shared<std::vector<grpc::Slice>>();
  if (message.Valid() && !message.Dump(slices.get()).ok()) {
    return absl::DataLossError("got a message that cannot be read");
  }
  SliceCursor cursor(*slices);
  const size_t total = cursor.remaining();
  size_t header_bytes = 0;
  const Scan scan = ScanFields(cursor, total, &header_bytes);
  if (scan == Scan::kMalformed) {
    return absl::DataLossError(absl::StrCat("got a malformed field at byte ",
                                            header_bytes, " of ", total,
                                            kDamaged));
  }
  FrameParts parts;
  parts.owner = slices;
  parts.separated = scan != Scan::kNeedsFullParse;
  if (scan == Scan::kPayloadIsRest) parts.payload = cursor.Rest(slices);
  parts.header =
      Flatten(*slices, parts.separated ? header_bytes : total, &parts.owner);
  return parts;
}

}  // namespace cohort
