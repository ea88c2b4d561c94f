#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/byte_rope.h"
#include "common/wire/framed_message.h"

// Whole messages as the bytes that gRPC carries. Streams read raw bytes and
// parse them here: if gRPC parses, a read fails in the same way whether the
// peer has closed its side or has sent garbage.
namespace cohort {

// Errors: DataLoss if the bytes are not a message of this type, see
//   NotAMessage.
template <typename Message>
absl::StatusOr<Message> DecodeMessage(const grpc::ByteBuffer& bytes) {
  // ProtoBufferReader takes a mutable buffer; this copy shares the memory.
  grpc::ByteBuffer shared = bytes;
  grpc::ProtoBufferReader reader(&shared);
  Message message;
  if (reader.status().ok() && message.ParseFromZeroCopyStream(&reader)) {
    return message;
  }
  return NotAMessage(bytes, message.GetTypeName());
}

template <typename Message>
grpc::ByteBuffer EncodeMessage(const Message& message) {
  return EncodeFrame(message, ByteRope());
}

}  // namespace cohort
