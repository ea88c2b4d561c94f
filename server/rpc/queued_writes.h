#pragma once

#include <grpc/grpc.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "common/wire/status.h"
#include "server/rpc/call_counts.h"
#include "server/streams/fault.h"
#include "server/streams/stream_registry.h"
#include "server/streams/streams.h"

namespace cohort {

inline int64_t BytesOfReply(const grpc::ByteBuffer& reply) {
  return static_cast<int64_t>(reply.Length());
}
template <typename Message>
int64_t BytesOfReply(const Message& reply) {
  return static_cast<int64_t>(reply.ByteSizeLong());
}

// The writing side of a server stream: takes replies from any thread, writes
// them in order, one at a time, and calls Finish exactly once.
//
// Reactor is the gRPC base class; Interface is the stream as the host sees it.
// The object keeps itself alive from Begin to OnDone.
//
// Operations are started under the lock: they only enqueue (gRPC runs the
// reaction later, never inside the call), and their order must be that of
// the queue.
template <typename Reactor, typename Response, typename Interface>
class QueuedWrites : public Reactor,
                     public Interface,
                     public std::enable_shared_from_this<
                         QueuedWrites<Reactor, Response, Interface>> {
 public:
  explicit QueuedWrites(StreamRegistry& registry) : registry_(registry) {}

  void End(const absl::Status& status) override ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    EndLocked(status);
  }

  void Cut(const absl::Status& status) override ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    EndLocked(status);
    CutLocked(status);
  }

  void CheckReader(Instant now) override ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (!writing_) return;
    if (seen_write_ != writes_) {
      seen_write_ = writes_;
      seen_since_ = now;
      return;
    }
    // A large message takes longer on a slow link.
    const absl::Duration patience =
        ReaderPatience() +
        absl::Seconds(BytesOfReply(queue_.front()) / kSlowestBytesPerSecond);
    if (now - seen_since_ < patience) return;
    const absl::Status late = absl::DeadlineExceededError(absl::StrCat(
        "an answer was not read within ", absl::FormatDuration(patience),
        "; read the answers of a call as they arrive"));
    EndLocked(late);
    CutLocked(late);
  }

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_) {
    {
      MutexLock lock(mu_);
      writing_ = false;
      queued_bytes_ -= BytesOfReply(queue_.front());
      queue_.pop_front();
      if (!ok) EndLocked(absl::CancelledError("the peer disconnected"));
      // The stream had ended before, with answers still queued.
      if (!ok) TrimLocked(0);
      ContinueLocked();
      if (writing_ || ended_) return;
    }
    if (!ok) return;
    const absl::Status status = ServePeer([this] {
      OnQueueEmpty();
      return absl::OkStatus();
    });
    if (!status.ok()) End(status);
  }

  void OnDone() override {
    std::unique_ptr<CountedCall> counted;
    {
      MutexLock lock(mu_);
      call_ = nullptr;
      counted = std::move(counted_);
    }
    registry_.Forget(this);
    OnGone();
    // Destroys *this, unless another reference remains.
    const auto last = std::move(self_);
  }

 protected:
  // Limits on replies that wait for a slow reader. Each is a reference to
  // weights that exist anyway; a reader this far behind has stopped reading.
  static constexpr size_t kQueueLengthMax = 1 << 16;
  static constexpr int64_t kQueueBytesMax = int64_t{16} << 20;
  static constexpr absl::Duration kReaderPatience = absl::Seconds(60);
  static constexpr int64_t kSlowestBytesPerSecond = int64_t{1} << 20;

  StreamRegistry& registry() { return registry_; }

  // As below, for a call that no interceptor counts.
  template <typename Admit>
  bool Begin(const StreamCall& call, Admit admit) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      MutexLock lock(mu_);
      counted_ = std::make_unique<CountedCall>(call.counts, call.method,
                                               *call.context);
    }
    return Begin(call.context, std::move(admit));
  }

  // Call once, before the reactor is passed to gRPC. Calls `admit` once and
  // returns whether it admitted the stream; otherwise ends the stream.
  template <typename Admit>
  bool Begin(grpc::CallbackServerContext* context, Admit admit)
      ABSL_LOCKS_EXCLUDED(mu_) {
    {
      MutexLock lock(mu_);
      call_ = context->c_call();
    }
    self_ = this->shared_from_this();
    const absl::Status admitted = ServePeer(std::move(admit));
    if (!admitted.ok()) End(admitted);
    return admitted.ok();
  }

  void Send(Response response) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (ended_) return;
    if (queue_.size() >= kQueueLengthMax) {
      EndLocked(absl::ResourceExhaustedError(absl::StrCat(
          "got ", queue_.size() + 1, " unread replies, want at most ",
          kQueueLengthMax, "; read them as they arrive")));
      return;
    }
    const int64_t bytes = BytesOfReply(response);
    // A single reply is accepted whatever its size.
    if (!queue_.empty() && queued_bytes_ + bytes > QueueBytesMax()) {
      EndLocked(absl::ResourceExhaustedError(
          absl::StrCat("got ", queued_bytes_ + bytes,
                       " bytes of unread replies, want at most ",
                       QueueBytesMax(), "; read them as they arrive")));
      return;
    }
    queued_bytes_ += bytes;
    queue_.push_back(std::move(response));
    ContinueLocked();
  }

  // Call for each message of the peer.
  void Received() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (counted_ != nullptr) counted_->Received();
  }

  // Call when the peer has sent its first message.
  void Spoke() { registry_.Spoke(this); }

  bool ended() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return ended_;
  }

  bool idle() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return queue_.empty();
  }

  // Runs `start` unless the stream has ended: no operation may be started
  // after Finish.
  template <typename Start>
  void UnlessEnded(Start start) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (!ended_) start();
  }

  // Called when everything queued has been sent and the stream continues.
  virtual void OnQueueEmpty() {}
  // The last call: gRPC is done with the stream.
  virtual void OnGone() {}
  // Limit on bytes of replies that may wait for the reader; must not block.
  virtual int64_t QueueBytesMax() const { return kQueueBytesMax; }
  // How long one small reply may wait until the peer takes it.
  virtual absl::Duration ReaderPatience() const { return kReaderPatience; }

 private:
  void EndLocked(const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (ended_) return;
    ended_ = true;
    status_ = ToGrpcStatus(status);
    // The write in progress must stay in place.
    if (!status.ok()) TrimLocked(writing_ ? 1 : 0);
    ContinueLocked();
  }

  void TrimLocked(size_t length) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    queue_.resize(length);
    queued_bytes_ = length == 0 ? 0 : BytesOfReply(queue_.front());
  }

  // Cancels a write that the peer does not read. Otherwise the stream and
  // everything that it references would stay as long as the connection does.
  // Unlike TryCancel, this sends the status to the peer.
  void CutLocked(const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!writing_ || cut_ || call_ == nullptr) return;
    cut_ = true;
    const grpc::Status told = ToGrpcStatus(status);
    grpc_call_cancel_with_status(
        call_, static_cast<grpc_status_code>(told.error_code()),
        told.error_message().c_str(), nullptr);
  }

  void ContinueLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (writing_) return;
    if (!queue_.empty()) {
      writing_ = true;
      ++writes_;
      if (counted_ != nullptr) counted_->Sent();
      this->StartWrite(&queue_.front());
    } else if (ended_ && !finished_) {
      finished_ = true;
      if (counted_ != nullptr) counted_->Ended(status_.error_code());
      this->Finish(status_);
    }
  }

  StreamRegistry& registry_;
  std::shared_ptr<QueuedWrites> self_;

  mutable Mutex mu_;
  // The front is being written if writing_.
  std::deque<Response> queue_ ABSL_GUARDED_BY(mu_);
  int64_t queued_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // Number of writes started; the last one that CheckReader saw, and since
  // when.
  int64_t writes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t seen_write_ ABSL_GUARDED_BY(mu_) = 0;
  Instant seen_since_ ABSL_GUARDED_BY(mu_);
  // Null before Begin and after OnDone, or if an interceptor counts the call.
  std::unique_ptr<CountedCall> counted_ ABSL_GUARDED_BY(mu_);
  // Null before Begin and after OnDone.
  grpc_call* call_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool cut_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cohort
