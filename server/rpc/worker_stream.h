#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/log/log.h"
#include "common/security/authenticator.h"
#include "common/status_macros.h"
#include "common/wire/message_bytes.h"
#include "common/wire/message_checksum.h"
#include "server/rpc/caller.h"
#include "server/rpc/queued_writes.h"
#include "server/rpc/stream_starts.h"
#include "server/run/run_host.h"
#include "server/streams/fault.h"

namespace cohort {

// A bidirectional stream of raw bytes between one worker, or shard 0, and a
// host. Requests are handled one at a time. Interface is the stream as the host
// sees it (server/streams/streams.h).
template <typename Interface>
class WorkerStream
    : public QueuedWrites<ByteBidiReactor, grpc::ByteBuffer, Interface> {
 public:
  // `run` is null at a data shard. Both must outlive the stream.
  WorkerStream(PartitionsHost& host, RunHost* run)
      : WorkerStream(host, run, host.streams()) {}

  // Call once, before the stream is passed to gRPC. Reads the first message, or
  // ends the stream if the host does not admit it.
  void Start(const StreamCall& call) {
    caller_ = CallerOf(*call.context);
    encrypted_ = !IdentityNameOf(*call.context).empty();
    if (this->Begin(call, [this] { return Admit(); })) Read();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      // The client has closed its side, or is gone.
      this->End(OnHalfClose());
      return;
    }
    this->Received();
    // A late message must not reclaim the place that this stream has lost.
    if (this->ended()) return;
    if (!std::exchange(spoken_, true)) this->Spoke();
    Reading reading = Reading::kGoesOn;
    const absl::Status status = ServePeer([this, &reading]() -> absl::Status {
      COHORT_ASSIGN_OR_RETURN(reading, Handle(request_));
      return absl::OkStatus();
    });
    if (absl::IsPermissionDenied(status)) NoteDenied(status);
    if (!status.ok()) {
      this->End(status);
    } else if (reading == Reading::kGoesOn) {
      Read();
    }
    // If paused, another thread may already be reading.
  }

 protected:
  // `registry` is one of the host's.
  WorkerStream(PartitionsHost& host, RunHost* run, StreamRegistry& registry)
      : QueuedWrites<ByteBidiReactor, grpc::ByteBuffer, Interface>(registry),
        host_(host),
        run_(run) {}

  // The client; fixed from Start on.
  const Caller& caller() const { return caller_; }
  bool encrypted() const { return encrypted_; }

  void Read() {
    this->UnlessEnded([this] {
      request_.Clear();
      this->StartRead(&request_);
    });
  }

  // Sends a message that has no payload.
  template <typename Message>
  void SendMessage(Message& message) {
    AddMessageChecksum(&message);
    this->Send(EncodeMessage(message));
  }

  // A reference to this stream, for the host to keep.
  template <typename Stream>
  std::shared_ptr<Stream> SharedFrom(Stream* stream) {
    return std::static_pointer_cast<Stream>(stream->shared_from_this());
  }

  // Admits the stream. Errors: those of StreamRegistry::Admit.
  virtual absl::Status Admit() {
    return host_.Admit(this->registry(), this->shared_from_this(),
                       /*speaks=*/true);
  }
  // A stream overrides Handle if it may be paused, otherwise OnMessage. Must
  // not block. A status that is not OK ends the stream.
  virtual absl::StatusOr<Reading> Handle(const grpc::ByteBuffer& message) {
    COHORT_RETURN_IF_ERROR(OnMessage(message));
    return Reading::kGoesOn;
  }
  virtual absl::Status OnMessage(const grpc::ByteBuffer& /*message*/) {
    return absl::OkStatus();
  }
  // The status with which the stream ends when the client sends nothing more.
  virtual absl::Status OnHalfClose() { return absl::OkStatus(); }

  PartitionsHost& host_;
  RunHost* const run_;

 private:
  void NoteDenied(const absl::Status& status) {
    if (run_ != nullptr) run_->DeniedRank(caller_.name);
    Log(LogLevel::kWarning,
        absl::StrCat("a message was refused: ", status.message()));
  }

  Caller caller_;
  bool encrypted_ = false;
  // Used by the reading side only.
  grpc::ByteBuffer request_;
  bool spoken_ = false;
};

// Creates a stream and starts it. The stream owns itself.
template <typename Stream, typename... Arguments>
ByteBidiReactor* Started(PartitionsHost& host, RunHost* run,
                         const StreamCall& call, Arguments... arguments) {
  const auto stream = std::make_shared<Stream>(host, run, arguments...);
  stream->Start(call);
  return stream.get();
}

}  // namespace cohort
