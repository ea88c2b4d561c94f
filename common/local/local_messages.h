#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

// The messages between a worker and the server over a PacketSocket. Both are
// processes of one machine, so they are plain structures.
//
//   worker                              server
//   Hello {token}                 ->
//                                 <-    Reply kWelcome {arena, counts, pipe}
//                                       + files
//                                 <-    Reply kFile {weights} + file, for each
//                                       file so far, and later for new ones
//                                 or    Reply kRefused {text}
namespace cohort::local {

// Changes with the messages and with the layout of what is shared.
inline constexpr uint32_t kFormat = 0x43484c02;

inline constexpr size_t kTokenBytes = 32;
inline constexpr size_t kTextBytes = 256;

struct Hello {
  uint32_t format = kFormat;
  char token[kTokenBytes] = {};
};

enum class ReplyKind : uint32_t {
  // Files: the rank's gradient arena, its counts of releases, the two memories
  // of its MessagePipe (the worker's, then the server's), and an eventfd that
  // tells the server about messages.
  kWelcome = 1,
  // File: the next file of weights.
  kFile = 2,
  // The connection ends.
  kRefused = 3,
};

struct Reply {
  uint32_t format = kFormat;
  ReplyKind kind = ReplyKind::kRefused;
  // Size of the first file.
  int64_t bytes = 0;
  // kWelcome: size of the second file, and of the third and the fourth.
  int64_t counts_bytes = 0;
  int64_t pipe_bytes = 0;
  // kRefused: why; ends with a zero.
  char text[kTextBytes] = {};
};

// The first byte of each message in a MessagePipe.
enum class Mail : char {
  // To the server: a cohort.v1.ReduceRequest. To the worker: a ReduceReply.
  kReduce = 1,
  // To the worker: the rendezvous have ended. One byte with the status code,
  // then its text.
  kEnd = 2,
};

template <typename Message>
absl::Span<const std::byte> BytesOf(const Message& message) {
  static_assert(std::is_trivially_copyable_v<Message>);
  return {reinterpret_cast<const std::byte*>(&message), sizeof(message)};
}

// Errors: FailedPrecondition if the peer is of another release.
template <typename Message>
absl::StatusOr<Message> MessageFrom(absl::Span<const std::byte> bytes) {
  Message message;
  if (bytes.size() == sizeof(message)) {
    std::memcpy(static_cast<void*>(&message), bytes.data(), sizeof(message));
    if (message.format == kFormat) return message;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("got a message of ", bytes.size(),
                   " bytes of another release, want the same release of "
                   "server and worker"));
}

}  // namespace cohort::local
