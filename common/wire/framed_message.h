#pragma once

#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>

#include <climits>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/byte_rope.h"
#include "common/check.h"

// Messages that end in `bytes payload = 15`, encoded and decoded without
// copying the payload.
//
// On the wire such a message is plain protobuf, so any gRPC client can read and
// write it. This code writes the other fields first and the payload last, as
// slices that reference the tensor's memory. The receiver keeps the payload in
// the slices in which it arrived.
namespace cohort {

// Field number of the payload in every framed message.
inline constexpr int kPayloadField = 15;

// A received message: its fields except `payload`, which is moved out.
template <typename Header>
struct FramedMessage {
  Header header;
  ByteRope payload;
};

// Appends `payload` as field 15 to the serialised `header`. The payload is
// referenced, not copied, and its owners are kept alive until gRPC has sent it.
grpc::ByteBuffer EncodeFrame(const google::protobuf::MessageLite& header,
                             const ByteRope& payload);

// The error for bytes that are no protobuf message, or none of type `name`. It
// is DataLoss, as for a wrong checksum: all programs of this project send valid
// messages, so the bytes were most likely damaged in transit, and another try
// helps.
absl::Status NotAMessage(const grpc::ByteBuffer& bytes, absl::string_view name);

// The bytes of a received message, split into header and payload.
struct FrameParts {
  // Serialised fields before the payload; the whole message if it could not be
  // split.
  absl::string_view header;
  // Pieces of the received slices.
  ByteRope payload;
  // False if the payload is not the last field, or unknown groups are present.
  // Parsing `header` as usual then finds the payload inside.
  bool separated = false;
  // Keeps the memory of `header` alive.
  std::shared_ptr<const void> owner;
};

// Errors: DataLoss if the bytes are not protobuf.
absl::StatusOr<FrameParts> SplitFrame(const grpc::ByteBuffer& message);

// Encodes `header`, whose own `payload` field must be empty.
template <typename Header>
grpc::ByteBuffer EncodeFramed(const Header& header, const ByteRope& payload) {
  static_assert(Header::kPayloadFieldNumber == kPayloadField);
  COHORT_CHECK(header.payload().empty(), "the payload would be sent twice");
  return EncodeFrame(header, payload);
}

// `header_bytes_max` limits the header, because parsing a header of many empty
// parts takes tens of times as much memory as it has bytes.
// Errors: DataLoss if the bytes are not a message of this type;
//   ResourceExhausted if the header is longer.
template <typename Header>
absl::StatusOr<FramedMessage<Header>> DecodeFramed(
    const grpc::ByteBuffer& message, int64_t header_bytes_max = INT_MAX) {
  static_assert(Header::kPayloadFieldNumber == kPayloadField);
  absl::StatusOr<FrameParts> parts = SplitFrame(message);
  if (!parts.ok()) return std::move(parts).status();
  FramedMessage<Header> framed;
  const auto header_bytes = static_cast<int64_t>(parts->header.size());
  // A payload that could not be split off counts: it is parsed with the rest.
  if (header_bytes > header_bytes_max) {
    return absl::ResourceExhaustedError(absl::StrCat(
        framed.header.GetTypeName(), ": got ", header_bytes,
        " bytes besides the payload, want at most ", header_bytes_max));
  }
  if (parts->header.size() > INT_MAX ||
      !framed.header.ParseFromArray(parts->header.data(),
                                    static_cast<int>(parts->header.size()))) {
    return NotAMessage(message, framed.header.GetTypeName());
  }
  if (parts->separated) {
    framed.payload = std::move(parts->payload);
  } else if (!framed.header.payload().empty()) {
    auto bytes = std::make_shared<const std::string>(
        std::move(*framed.header.mutable_payload()));
    framed.payload = ByteRope(
        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes->data()),
                            bytes->size()),
        bytes);
    framed.header.clear_payload();
  }
  return framed;
}

}  // namespace cohort
