#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/clock.h"
#include "common/wire/bidi_stream.h"
#include "worker/client/link.h"

namespace cohort {

// A streaming call of framed messages, by name. The send queue is bounded in
// bytes.
class BulkStream {
 public:
  using Stream = BidiStream<grpc::ByteBuffer, grpc::ByteBuffer>;

  // Enough for the gradients of one step of most models, and small compared
  // with the memory that a worker needs for them anyway.
  static constexpr int64_t kQueuedBytesMax = int64_t{256} << 20;

  // `on_message` and `on_end` as in BidiStream; `link` must outlive it.
  BulkStream(const std::shared_ptr<grpc::Channel>& channel,
             const std::string& method, Link& link,
             std::function<absl::Status(grpc::ByteBuffer&)> on_message,
             std::function<void(const absl::Status&)> on_end,
             int64_t queued_bytes_max = kQueuedBytesMax);

  // Queues `message`; blocks until it fits into the queue.
  // Errors: Aborted if the step in progress ends; Unavailable if
  //   the stream is over; those of Link::WaitLocked.
  absl::Status Send(grpc::ByteBuffer message, Instant deadline);

  void FinishWrites() { stream_.FinishWrites(); }

 private:
  // Fixed after construction.
  Link& link_;
  const int64_t queued_bytes_max_;

  grpc::GenericStub stub_;
  int64_t queued_bytes_ ABSL_GUARDED_BY(link_.mu) = 0;
  bool over_ ABSL_GUARDED_BY(link_.mu) = false;
  // Send waits.
  bool waits_for_room_ ABSL_GUARDED_BY(link_.mu) = false;
  // Last, so that it is destroyed before the members that its reactions use.
  Stream stream_;
};

}  // namespace cohort
