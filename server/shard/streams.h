#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/assignment.h"
#include "common/clock.h"
#include "common/moments.h"
#include "server/core/effects.h"

// What a shard says to the streams that workers hold open. Domain types only:
// the gRPC adapters implement these, and a test can do without gRPC.
//
// Thread safety: all methods of all streams are safe and return at once; what
// is sent is queued in order. After End everything else is ignored.
namespace cohort {

class Stream {
 public:
  virtual ~Stream() = default;

  // Ends the stream with `status`. With OK, what is queued is sent first;
  // otherwise it is discarded. The first call decides.
  virtual void End(const absl::Status& status) = 0;
  // The same, without waiting for a peer that does not read.
  virtual void Cut(const absl::Status& status) { End(status); }
  // Call it at least every few seconds: cuts the stream if the peer has not
  // read an answer for too long.
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

class ExchangeStream : public Stream {
 public:
  // There may be room now for the gradient that it holds back.
  virtual void Resume(const effect::ResumeGradients& resume) = 0;
  // Queues a reference to the weights, never a copy.
  virtual void SendWeights(const effect::SendWeights& weights) = 0;
  virtual void SendVerdict(const effect::SendVerdict& verdict) = 0;
};

// The message that was encoded last. Members get the same results one after
// the other, and only the first stream encodes them.
struct EncodedResults {
  // The results that it holds, in order; compared by address.
  std::vector<const Moments*> of;
  // Its type is the streams' own matter.
  std::shared_ptr<const void> message;
};

class ReduceStream : public Stream {
 public:
  // In one message. `results` is not empty. `encoded` is read and replaced; it
  // and the results live as long as one row of calls.
  virtual void SendResults(
      absl::Span<const effect::ReduceResult* const> results,
      EncodedResults& encoded) = 0;
  virtual void SendAborted(const effect::ReduceAborted& aborted) = 0;
};

}  // namespace cohort
