#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace cohort {

// One end of a connection between two processes over two shared memories: each
// end writes to one and reads the other. Messages arrive in order, and as often
// as they were sent.
//
// The other process is not trusted: whatever it writes gives at worst an error
// here. Messages are copied out before they are used, so they do not change
// while they are read.
//
// Thread safety: one thread may send while another one receives.
class MessagePipe {
 public:
  // The size of each memory, for messages that wait to be received of
  // `capacity` bytes in all, each counted with 4 bytes more. `capacity` must be
  // a power of two, from 64 to 2^30.
  static int64_t SizeBytes(int64_t capacity);

  // Both memories must have SizeBytes of the same capacity, be aligned to 64
  // bytes, contain zeros at first, and outlive the pipe.
  MessagePipe(absl::Span<std::byte> own, absl::Span<const std::byte> other);

  // Errors: ResourceExhausted: the other end has not received enough to make
  //   room; InvalidArgument: there is never room for it; DataLoss: the other
  //   end has damaged its memory.
  absl::Status Send(absl::Span<const std::byte> message);
  // Ends the other end's Wait.
  void WakeOther() const;

  // The next message; absent if there is none. Errors: DataLoss: the other end
  // has damaged its memory.
  absl::StatusOr<std::optional<std::string>> Receive();
  // Waits for a message, at first awake, then until WakeOther; at most for
  // `timeout`; may return early.
  void Wait(absl::Duration timeout) const;

 private:
  // At the beginning of a memory; counts of bytes, modulo 2^32. Each has a
  // separate cache line.
  struct Header {
    alignas(64) uint32_t sent;
    alignas(64) uint32_t received;
  };

  void CopyIn(uint32_t at, absl::Span<const std::byte> bytes);
  void CopyOut(uint32_t at, absl::Span<std::byte> bytes) const;

  // Fixed after construction. What they point to is shared with the other
  // process; the words are atomic.
  const uint32_t capacity_;
  Header* const own_;
  std::byte* const outgoing_;
  Header* const other_;
  const std::byte* const incoming_;

  // The true counts of this end; those in memory are for the other one.
  uint32_t sent_ = 0;
  uint32_t received_ = 0;
};

}  // namespace cohort
