#include "common/wire/framed_message.h"

#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/protobuf_encoding.h"

namespace cohort {
namespace {

using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;
using Owner = std::shared_ptr<const void>;

constexpr uint32_t kPayloadTag =
    FieldTag(kPayloadField, WireType::kLengthDelimited);

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

constexpr absl::string_view kDamaged =
    ": the message was damaged in transit, or its sender does not speak this "
    "protocol";

enum class Scan {
  // The stream is at the payload, which is the rest of the message.
  kPayloadIsRest,
  kNoPayload,
  kNeedsFullParse,
  kMalformed,
};

// Reads past one field that is not the payload. `total` is the size of the
// message.
bool SkipField(uint64_t tag, uint64_t total, CodedInputStream& in) {
  uint64_t value = 0;
  switch (WireTypeOf(tag)) {
    case WireType::kVarint:
      return in.ReadVarint64(&value);
    case WireType::kFixed64:
      return in.Skip(8);
    case WireType::kFixed32:
      return in.Skip(4);
    case WireType::kLengthDelimited:
      return in.ReadVarint64(&value) && value <= total &&
             in.Skip(static_cast<int>(value));
    default:
      return false;
  }
}

// Searches for the payload and sets `header_bytes` to the number of bytes
// before it.
Scan ScanFields(CodedInputStream& in, size_t total, size_t* header_bytes) {
  const auto position = [&in] {
    return static_cast<size_t>(in.CurrentPosition());
  };
  while (position() < total) {
    *header_bytes = position();
    uint64_t tag = 0;
    if (!in.ReadVarint64(&tag) || tag > UINT32_MAX || (tag >> 3) == 0) {
      return Scan::kMalformed;
    }
    const WireType type = WireTypeOf(tag);
    if (type == WireType::kStartGroup || type == WireType::kEndGroup) {
      return Scan::kNeedsFullParse;
    }
    if (tag != kPayloadTag) {
      if (!SkipField(tag, total, in)) return Scan::kMalformed;
      continue;
    }
    uint64_t length = 0;
    if (!in.ReadVarint64(&length) || length > total - position()) {
      return Scan::kMalformed;
    }
    return length == total - position() ? Scan::kPayloadIsRest
                                        : Scan::kNeedsFullParse;
  }
  *header_bytes = total;
  return Scan::kNoPayload;
}

// All bytes but the first `skip`, as pieces that share `owner`.
ByteRope Behind(const std::vector<grpc::Slice>& slices, size_t skip,
                const Owner& owner) {
  ByteRope rest;
  for (const grpc::Slice& slice : slices) {
    const size_t left_out = std::min(skip, slice.size());
    skip -= left_out;
    const auto* begin = reinterpret_cast<const std::byte*>(slice.begin());
    rest.Append(absl::MakeConstSpan(begin + left_out, slice.size() - left_out),
                owner);
  }
  return rest;
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
  const size_t total = message.Length();
  // The reader only reads, and takes a pointer to mutable bytes.
  grpc::ProtoBufferReader reader(const_cast<grpc::ByteBuffer*>(&message));
  CodedInputStream in(&reader);
  size_t header_bytes = 0;
  const Scan scan = ScanFields(in, total, &header_bytes);
  if (scan == Scan::kMalformed) {
    return absl::DataLossError(absl::StrCat("got a malformed field at byte ",
                                            header_bytes, " of ", total,
                                            kDamaged));
  }
  FrameParts parts;
  parts.owner = slices;
  parts.separated = scan != Scan::kNeedsFullParse;
  if (scan == Scan::kPayloadIsRest) {
    parts.payload =
        Behind(*slices, static_cast<size_t>(in.CurrentPosition()), slices);
  }
  parts.header =
      Flatten(*slices, parts.separated ? header_bytes : total, &parts.owner);
  return parts;
}

}  // namespace cohort
