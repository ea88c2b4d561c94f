#pragma once

#include <google/protobuf/message.h>

#include <cstdint>

#include "absl/status/status.h"

// Checksums of whole messages: the field `message_xxh3` that types.proto
// describes. TCP's own checksum has 16 bits and ends at each proxy; a flipped
// bit that it lets through would become another model without a word.
//
// The sum is over the encoding of what was parsed, not over the bytes that
// came: a parsed message is all that acts, and generated code does not keep the
// bytes. What was sent in another order of fields still fits.
namespace cohort {
namespace wire_internal {

uint64_t DigestOf(const google::protobuf::Message& message);
// `claimed` is null if the message had no checksum.
absl::Status CompareDigest(const google::protobuf::Message& message,
                           const uint64_t* claimed);

}  // namespace wire_internal

// Sets the checksum of a message that is complete but for its payload. Call it
// last.
template <typename Message>
void AddMessageChecksum(Message* message) {
  message->clear_message_xxh3();
  message->set_message_xxh3(wire_internal::DigestOf(*message));
}

// Takes the checksum out of a received message and compares it. A message
// without one passes: it is of a release that sends none. But if it has fields
// that this release does not know, it is of a newer one that does, and the
// checksum itself was hit.
// Errors: DataLoss; the message must then not be used.
template <typename Message>
absl::Status TakeMessageChecksum(Message* message) {
  if (!message->has_message_xxh3()) {
    return wire_internal::CompareDigest(*message, nullptr);
  }
  const uint64_t claimed = message->message_xxh3();
  message->clear_message_xxh3();
  return wire_internal::CompareDigest(*message, &claimed);
}

}  // namespace cohort
