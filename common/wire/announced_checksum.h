#pragma once

#include "absl/status/status.h"
#include "common/wire/message_checksum.h"

namespace cohort {

// Metadata of a call of Admin whose request has a checksum. It is optional
// there, for clients such as grpcurl. One flipped bit can make the checksum a
// part of the entry of a map that stands before it, and an entry drops the
// fields that it does not know: then nothing in the message tells that it ever
// had a checksum.
inline constexpr char kChecksumAnnounced[] = "cohort-message-xxh3";

// TakeMessageChecksum for a request of a call with (`announced`) or without
// kChecksumAnnounced.
// Errors: DataLoss, also if there is no checksum although it was announced.
template <typename Message>
absl::Status TakeAnnouncedChecksum(Message* message, bool announced) {
  if (!announced && !message->has_message_xxh3()) return absl::OkStatus();
  return TakeMessageChecksum(message);
}

}  // namespace cohort
