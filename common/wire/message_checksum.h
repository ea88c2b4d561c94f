#pragma once

#include <google/protobuf/message.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"

// Checksums of whole messages: the field `message_xxh3` that types.proto
// describes. TCP's own checksum has 16 bits and ends at each proxy; a flipped
// bit that it misses would silently become another model.
//
// The checksum covers the encoding of the parsed message, not the received
// bytes: only the parsed message is used, and generated code does not keep the
// bytes. A message whose fields were sent in another order still matches.
namespace cohort {

// The encoding with maps sorted by key: equal messages have equal bytes.
std::string SortedEncoding(const google::protobuf::Message& message);

namespace wire_internal {

uint64_t DigestOf(const google::protobuf::Message& message);
absl::Status CompareDigest(const google::protobuf::Message& message,
                           uint64_t claimed);
absl::Status NoDigest(const google::protobuf::Message& message);

}  // namespace wire_internal

// Sets the checksum of a message that is complete except for its payload. Call
// it last.
template <typename Message>
void AddMessageChecksum(Message* message) {
  message->clear_message_xxh3();
  message->set_message_xxh3(wire_internal::DigestOf(*message));
}

// Removes the checksum from a received message and compares it.
// Errors: DataLoss, also if there is none, because damage can hide it; the
//   message must then not be used.
template <typename Message>
absl::Status TakeMessageChecksum(Message* message) {
  if (!message->has_message_xxh3()) return wire_internal::NoDigest(*message);
  const uint64_t claimed = message->message_xxh3();
  message->clear_message_xxh3();
  return wire_internal::CompareDigest(*message, claimed);
}

}  // namespace cohort
