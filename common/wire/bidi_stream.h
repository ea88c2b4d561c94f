#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/client_callback.h>

#include <deque>
#include <functional>
#include <type_traits>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/wire/status.h"

namespace cohort {

// The client side of one bidirectional call. Messages are written in order, one
// at a time; the others wait in a queue that the owner bounds. Incoming
// messages are read at once.
//
// Messages come off the wire as bytes and are parsed here: gRPC reports bytes
// that it cannot parse as the end of the stream, but the server has not ended
// it, so no status would follow.
//
// A write to an idle stream starts on the caller's thread, and messages are
// swapped rather than copied, so a caller that reuses its message allocates
// nothing.
//
// Thread safety: safe, except that Start must come first and Close last.
// Reactions run on gRPC's threads and must not block.
template <typename Request, typename Response>
class BidiStream final
    : private grpc::ClientBidiReactor<Request, grpc::ByteBuffer> {
 public:
  using Reactor = grpc::ClientBidiReactor<Request, grpc::ByteBuffer>;

  struct Reactions {
    // A message arrived. An error ends the stream with that status.
    std::function<absl::Status(Response&)> on_message;
    // gRPC has taken over a message. May be empty.
    std::function<void(const Request&)> on_written;
    // The stream has ended. Called once, after all other reactions.
    std::function<void(const absl::Status&)> on_end;
  };

  explicit BidiStream(Reactions reactions) : reactions_(std::move(reactions)) {}
  ~BidiStream() override { Close(); }

  // `bind` makes the call with this context and reactor, without starting it.
  void Start(absl::FunctionRef<void(grpc::ClientContext*, Reactor*)> bind) {
    bind(&context_, this);
    {
      MutexLock lock(mu_);
      state_ = State::kOpen;
    }
    // Writes come from outside the reactions; see ReleaseHoldLocked.
    this->AddHold();
    this->StartRead(&incoming_);
    this->StartCall();
  }

  // Takes `message`, leaving another one in its place. Returns false if the
  // stream has ended or FinishWrites was called.
  bool Write(Request& message) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      MutexLock lock(mu_);
      if (state_ != State::kOpen || finish_wanted_) return false;
      if (write_busy_) {
        queue_.emplace_back();
        queue_.back().Swap(&message);
        return true;
      }
      write_busy_ = true;
      outgoing_.Swap(&message);
    }
    this->StartWrite(&outgoing_);
    return true;
  }

  // Like Write, but returns false if another message is being written.
  bool WriteIfIdle(Request& message) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      MutexLock lock(mu_);
      if (write_busy_) return false;
    }
    return Write(message);
  }

  // Tells the server that no messages follow the queued ones.
  void FinishWrites() ABSL_LOCKS_EXCLUDED(mu_) {
    {
      MutexLock lock(mu_);
      if (state_ != State::kOpen || finish_wanted_) return;
      finish_wanted_ = true;
      if (write_busy_) return;
      write_busy_ = true;
    }
    this->StartWritesDone();
  }

  void Cancel() { context_.TryCancel(); }

  // The connected server, as a channel's target; known after the first message.
  std::string peer() const { return context_.peer(); }

  // Waits until the server has ended the stream. Returns false if `deadline` on
  // `clock` passes first.
  bool WaitForEnd(const Clock& clock, Instant deadline)
      ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    while (state_ != State::kOver && state_ != State::kNew) {
      if (!over_.WaitUntil(mu_, clock, deadline)) return false;
    }
    return true;
  }

  // Cancels the call and waits until gRPC is done with this object.
  void Close() ABSL_LOCKS_EXCLUDED(mu_) {
    Cancel();
    MutexLock lock(mu_);
    while (state_ != State::kOver && state_ != State::kNew) over_.Wait(mu_);
  }

 private:
  enum class State {
    kNew,
    kOpen,
    // All messages have arrived; the final status is on its way.
    kReadOver,
    kOver,
  };

  absl::Status HandIn() {
    if constexpr (std::is_same_v<Response, grpc::ByteBuffer>) {
      return reactions_.on_message(incoming_);
    } else {
      const size_t bytes = incoming_.Length();
      if (!grpc::SerializationTraits<Response>::Deserialize(&incoming_,
                                                            &parsed_)
               .ok()) {
        return absl::DataLossError(
            absl::StrCat("got ", bytes, " bytes, want a ",
                         Response::descriptor()->full_name()));
      }
      return reactions_.on_message(parsed_);
    }
  }

  void OnReadDone(bool ok) override {
    if (ok) {
      absl::Status status = HandIn();
      if (status.ok()) {
        this->StartRead(&incoming_);
        return;
      }
      {
        MutexLock lock(mu_);
        failure_ = std::move(status);
      }
      Cancel();
    }
    bool release = false;
    {
      MutexLock lock(mu_);
      state_ = State::kReadOver;
      release = ReleaseHoldLocked();
    }
    if (release) this->RemoveHold();
  }

  void OnWriteDone(bool ok) override {
    if (reactions_.on_written) reactions_.on_written(outgoing_);
    bool write = false;
    bool finish = false;
    bool release = false;
    // Destroyed outside the lock: messages own memory of others.
    std::deque<Request> dropped;
    Request written;
    {
      MutexLock lock(mu_);
      ok = ok && state_ == State::kOpen;
      if (ok && !queue_.empty()) {
        written.Swap(&outgoing_);
        outgoing_.Swap(&queue_.front());
        queue_.pop_front();
        write = true;
      } else if (ok && finish_wanted_) {
        finish = true;
      } else {
        // A protobuf message keeps its memory for the next use; a byte buffer
        // would keep tensors alive.
        if constexpr (std::is_same_v<Request, grpc::ByteBuffer>) {
          written.Swap(&outgoing_);
        }
        if (!ok) dropped.swap(queue_);
        write_busy_ = false;
        release = ReleaseHoldLocked();
      }
    }
    if (write) this->StartWrite(&outgoing_);
    if (finish) this->StartWritesDone();
    if (release) this->RemoveHold();
  }

  void OnWritesDoneDone(bool /*ok*/) override {
    bool release = false;
    {
      MutexLock lock(mu_);
      write_busy_ = false;
      release = ReleaseHoldLocked();
    }
    if (release) this->RemoveHold();
  }

  void OnDone(const grpc::Status& status) override {
    absl::Status end = FromGrpcStatus(status);
    {
      MutexLock lock(mu_);
      if (!failure_.ok()) end = failure_;
    }
    reactions_.on_end(end);
    // Notify under the lock, because the waiting thread destroys this object as
    // soon as it sees the state.
    MutexLock lock(mu_);
    state_ = State::kOver;
    over_.NotifyAll();
  }

  // gRPC must not finish the call between the decision to write and the write,
  // which can come from any thread. One hold prevents it. The hold is released
  // when nothing can be written any more: after the last read or, if a write
  // has been decided on by then (write_busy_), at the end of that write.
  bool ReleaseHoldLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (state_ != State::kReadOver || write_busy_ || hold_released_) {
      return false;
    }
    hold_released_ = true;
    return true;
  }

  // Fixed after construction.
  const Reactions reactions_;

  // Synchronises itself.
  grpc::ClientContext context_;
  CondVar over_;
  // Used by the read in progress. The second is reused, so that a message
  // allocates little, and is not used if messages are handed on as bytes.
  grpc::ByteBuffer incoming_;
  Response parsed_;
  // Owned by the thread that has set write_busy_.
  Request outgoing_;

  Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kNew;
  bool write_busy_ ABSL_GUARDED_BY(mu_) = false;
  bool finish_wanted_ ABSL_GUARDED_BY(mu_) = false;
  bool hold_released_ ABSL_GUARDED_BY(mu_) = false;
  // The error of a reaction; replaces gRPC's status.
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  std::deque<Request> queue_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cohort
