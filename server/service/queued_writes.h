#pragma once

#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "common/wire/status.h"
#include "server/service/stream_registry.h"
#include "server/service/streams.h"

namespace cohort {

// The writing side of a server stream: replies of any thread, in order, one
// write at a time, and exactly one Finish.
//
// Reactor is the gRPC base class, Interface the stream as the shard sees it.
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

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_) {
    {
      MutexLock lock(mu_);
      writing_ = false;
      queue_.pop_front();
      if (!ok) EndLocked(absl::CancelledError("the peer is gone"));
      // Ended before, with answers left to be sent.
      if (!ok) queue_.clear();
      ContinueLocked();
      if (writing_ || ended_) return;
    }
    if (ok) OnQueueEmpty();
  }

  void OnDone() override {
    registry_.Forget(this);
    OnGone();
    // Destroys *this, unless someone still holds a reference.
    const auto last = std::move(self_);
  }

 protected:
  // Replies that wait for a slow reader. Each is a reference to weights that
  // exist anyway; a reader this far behind has stopped reading.
  static constexpr size_t kQueueLengthMax = 1 << 16;

  // Call once, before the reactor is handed to gRPC.
  void Begin() { self_ = this->shared_from_this(); }

  void Send(Response response) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (ended_) return;
    if (queue_.size() >= kQueueLengthMax) {
      EndLocked(absl::ResourceExhaustedError(
          absl::StrCat("got ", queue_.size(), " replies that were not read")));
      return;
    }
    queue_.push_back(std::move(response));
    ContinueLocked();
  }

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

  // Everything queued was sent, and the stream goes on.
  virtual void OnQueueEmpty() {}
  // Last call: gRPC is done with the stream.
  virtual void OnGone() {}

 private:
  void EndLocked(const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (ended_) return;
    ended_ = true;
    status_ = ToGrpcStatus(status);
    // The write in progress must stay where it is.
    if (!status.ok()) queue_.resize(writing_ ? 1 : 0);
    ContinueLocked();
  }

  void ContinueLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (writing_) return;
    if (!queue_.empty()) {
      writing_ = true;
      this->StartWrite(&queue_.front());
    } else if (ended_ && !finished_) {
      finished_ = true;
      this->Finish(status_);
    }
  }

  StreamRegistry& registry_;
  std::shared_ptr<QueuedWrites> self_;

  mutable Mutex mu_;
  // The front is being written if writing_.
  std::deque<Response> queue_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mu_);
};

// A bidirectional stream whose requests are handled one at a time.
template <typename Request, typename Response, typename Interface>
class QueuedBidi
    : public QueuedWrites<grpc::ServerBidiReactor<Request, Response>, Response,
                          Interface> {
 public:
  using QueuedWrites<grpc::ServerBidiReactor<Request, Response>, Response,
                     Interface>::QueuedWrites;

  void OnReadDone(bool ok) override {
    if (!ok) {
      // The client has closed its side, or is gone.
      this->End(OnHalfClose());
      return;
    }
    // What arrives on a stream that lost its place must not take it back.
    if (this->ended()) return;
    const absl::StatusOr<After> after = Handle(request_);
    if (!after.ok()) {
      this->End(after.status());
    } else if (*after == After::kRead) {
      Read();
    }
    // Paused, another thread may be reading already.
  }

 protected:
  void Read() {
    request_.Clear();
    this->UnlessEnded([this] { this->StartRead(&request_); });
  }

  // What follows on a message.
  enum class After {
    kRead,
    // Nothing, until the stream calls Read itself.
    kPause,
  };

  // One of these two is overridden, the first where a stream may be paused.
  // Must not block. A status that is not OK ends the stream.
  virtual absl::StatusOr<After> Handle(const Request& request) {
    const absl::Status status = OnMessage(request);
    if (!status.ok()) return status;
    return After::kRead;
  }
  virtual absl::Status OnMessage(const Request& /*request*/) {
    return absl::OkStatus();
  }
  // How the stream ends once the client sends nothing more.
  virtual absl::Status OnHalfClose() { return absl::OkStatus(); }

 private:
  Request request_;
};

}  // namespace cohort
