#include "worker/client/bulk_stream.h"

#include <utility>

#include "common/status_macros.h"

namespace cohort {

BulkStream::BulkStream(
    const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
    Link& link, std::function<absl::Status(grpc::ByteBuffer&)> on_message,
    std::function<void(const absl::Status&)> on_end, int64_t queued_bytes_max)
    : link_(link),
      queued_bytes_max_(queued_bytes_max),
      stub_(channel),
      stream_({.on_message = std::move(on_message),
               .on_written =
                   [this](const grpc::ByteBuffer& message) {
                     bool wakes = false;
                     {
                       MutexLock lock(link_.mu);
                       queued_bytes_ -= static_cast<int64_t>(message.Length());
                       wakes = std::exchange(waits_for_room_, false);
                     }
                     // Not for each message: the driving thread may be waiting
                     // for something else.
                     if (wakes) link_.Notify();
                   },
               .on_end =
                   [this, on_end = std::move(on_end)](const absl::Status& end) {
                     // First, so that a blocked Send sees the reason.
                     on_end(end);
                     {
                       MutexLock lock(link_.mu);
                       over_ = true;
                     }
                     link_.Notify();
                   }}) {
  stream_.Start([this, &method](grpc::ClientContext* context, auto* reactor) {
    // The session is up, but this channel may still be connecting.
    context->set_wait_for_ready(true);
    stub_.PrepareBidiStreamingCall(context, method, {}, reactor);
  });
}

absl::Status BulkStream::Send(grpc::ByteBuffer message, Instant deadline) {
  const auto bytes = static_cast<int64_t>(message.Length());
  {
    MutexLock lock(link_.mu);
    COHORT_RETURN_IF_ERROR(link_.CheckLocked());
    COHORT_RETURN_IF_ERROR(link_.tracker.CheckTaken());
    // A message that is larger than the limit passes alone, or it would wait
    // for ever.
    while (queued_bytes_ > 0 && queued_bytes_ + bytes > queued_bytes_max_) {
      if (over_) return absl::UnavailableError("the stream is over");
      waits_for_room_ = true;
      COHORT_RETURN_IF_ERROR(link_.WaitLocked(deadline));
      COHORT_RETURN_IF_ERROR(link_.tracker.CheckTaken());
    }
    queued_bytes_ += bytes;
  }
  return stream_.Write(message) ? absl::OkStatus()
                                : absl::UnavailableError("the stream is over");
}

}  // namespace cohort
