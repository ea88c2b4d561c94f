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

// One bidirectional call, seen from the client. Messages are written in order,
// one at a time, and the others wait in a queue that the owner bounds; what
// arrives is read at once.
//
// Messages come off the wire as bytes and are parsed here: gRPC reports bytes
// that it cannot parse as the end of the stream, which the server, who sent
// them in good faith, would never follow up with one.
//
// A write to an idle stream starts on the caller's thread, and messages are
// swapped rather than copied, so that a caller who reuses its message
// allocates nothing.
//
// Thread safety: safe, but for Start, which comes first, and Close, which
// comes last. Reactions run on gRPC's threads and must not block.
template <typename Request, typename Response>
class BidiStream final
    : private grpc::ClientBidiReactor<Request, grpc::ByteBuffer> {
 public:
  using Reactor = grpc::ClientBidiReactor<Request, grpc::ByteBuffer>;

  struct Reactions {
    // A message arrived. An error ends the stream with that status.
    std::function<absl::Status(Response&)> on_message;
    // A message was taken over by gRPC. May be empty.
    std::function<void(const Request&)> on_written;
    // The stream is over; called once, after all the others.
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

  // Takes `message`, leaving another one in its place. False if the stream is
  // over or FinishWrites was called.
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

  // The same, but gives up if another message is on its way.
  bool WriteIfIdle(Request& message) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      MutexLock lock(mu_);
      if (write_busy_) return false;
    }
    return Write(message);
  }

  // Tells the server, after what is queued, that no more messages follow.
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

  // Whom it is connected to, as a channel's target; known once a message came.
  std::string peer() const { return context_.peer(); }

  // Waits until the server has ended the stream; false if `deadline` on `clock`
  // passes first.
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
    // Nothing more arrives; the final status is on its way.
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
        // Kept by a protobuf message for its next use; a byte buffer would
        // keep tensors alive.
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
    // Notified under the lock, because the waiting thread destroys this
    // object as soon as it sees the state.
    MutexLock lock(mu_);
    state_ = State::kOver;
    over_.NotifyAll();
  }

  // gRPC must not finish the call between the decision to write and the
  // write, which come from any thread. One hold prevents it, and goes when
  // nothing can be written any more: after the last read, unless a write has
  // been decided on (write_busy_), whose own end then releases the hold.
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
  // Belong to the read in progress; the second is reused, so that a message
  // allocates little, and stands idle where bytes are handed on.
  grpc::ByteBuffer incoming_;
  Response parsed_;
  // Belongs to whoever has set write_busy_.
  Request outgoing_;

  Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kNew;
  bool write_busy_ ABSL_GUARDED_BY(mu_) = false;
  bool finish_wanted_ ABSL_GUARDED_BY(mu_) = false;
  bool hold_released_ ABSL_GUARDED_BY(mu_) = false;
  // What a reaction refused; replaces gRPC's status.
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  std::deque<Request> queue_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cohort
