#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/assignment.h"
#include "common/byte_rope.h"
#include "common/clock.h"
#include "common/float_buffer.h"
#include "common/ids.h"
#include "common/moments.h"
#include "common/push.h"
#include "server/core/events/effects.h"

// The streams that workers hold open, as their host sees them. They use only
// domain types: the gRPC adapters implement them, and tests can work without
// gRPC.
//
// Thread safety: all methods of all streams are safe and return at once.
// Messages are sent in order. After End all other calls are ignored.
namespace cohort {

class Stream {
 public:
  virtual ~Stream() = default;

  // Ends the stream with `status`. With OK, queued messages are sent first;
  // otherwise they are discarded. Only the first call has an effect.
  virtual void End(const absl::Status& status) = 0;
  // Ends the stream without waiting for a peer that does not read.
  virtual void Cut(const absl::Status& status) { End(status); }
  // Must be called at least every few seconds. Cuts the stream if the peer has
  // not read an answer for too long.
  virtual void CheckReader(Instant /*now*/) {}
};

inline void EndAll(const std::vector<std::shared_ptr<Stream>>& streams,
                   const absl::Status& status) {
  for (const std::shared_ptr<Stream>& stream : streams) stream->End(status);
}

class SessionStream : public Stream {
 public:
  virtual void SendJoined(const effect::Joined& joined) = 0;
  virtual void SendAssignment(const Assignment& assignment) = 0;
  virtual void SendStepAborted(const effect::StepAborted& aborted) = 0;
};

class RegisterStream : public Stream {
 public:
  // A status that is not OK ends the stream.
  virtual void SendAnswer(const absl::StatusOr<RegisterAnswer>& answer) = 0;
};

// Weights of one partition for the push of `key`, tentative until its verdict.
struct WeightsMessage {
  PushKey key;
  int32_t partition = 0;
  Version version;
  SharedFloats weights;
  // What the weights of the version before need to become these, in bfloat16,
  // and its XXH3-64. Empty if they go as they are.
  ByteRope change;
  uint64_t change_checksum = 0;
};

class ExchangeStream : public Stream {
 public:
  // The gradients that have come are taken: others may be read.
  virtual void Resume() = 0;
  // Queues a reference to the weights, never a copy.
  virtual void SendWeights(const WeightsMessage& weights) = 0;
  virtual void SendVerdict(const effect::SendVerdict& verdict) = 0;
};

// The message that was encoded last. Members get the same results one after the
// other, and only the first stream encodes them.
struct EncodedResults {
  // The encoded results, in order; compared by address.
  std::vector<const Moments*> of;
  // Only the streams know its type.
  std::shared_ptr<const void> message;
};

class PullStream : public Stream {
 public:
  // It is this pull's turn to send one partition.
  virtual void SendPartition() = 0;
};

class ReduceStream : public Stream {
 public:
  // Sends the results in one message. `results` must not be empty. `encoded` is
  // read and replaced; it and the results live as long as one series of calls.
  virtual void SendResults(
      absl::Span<const effect::ReduceResult* const> results,
      EncodedResults& encoded) = 0;
  virtual void SendAborted(const effect::ReduceAborted& aborted) = 0;
};

}  // namespace cohort
