#pragma once

#include <string>
#include <utility>

#include "common/wire/message_checksum.h"

namespace cohort {

// The message with its checksum, unless it already has one.
template <typename Message>
Message Sealed(Message message) {
  if (message.has_message_xxh3()) return message;
  if constexpr (requires { message.payload(); }) {
    // It has a separate checksum.
    std::string payload = std::move(*message.mutable_payload());
    message.clear_payload();
    AddMessageChecksum(&message);
    *message.mutable_payload() = std::move(payload);
  } else {
    AddMessageChecksum(&message);
  }
  return message;
}

}  // namespace cohort
