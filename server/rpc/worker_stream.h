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

// A bidirectional stream of raw bytes between one worker and a host.
// Requests are handled one at a time. Interface is the stream as the host sees
// it (server/streams/streams.h).
template <typename Interface>
class WorkerStream
    : public QueuedWrites<ByteBidiReactor, grpc::ByteBuffer, Interface> {
 public:
  // `run` must outlive the stream.
  explicit WorkerStream(RunHost& run)
      : QueuedWrites<ByteBidiReactor, grpc::ByteBuffer, Interface>(
            run.partitions().streams()),
        run_(run) {}

  // Call once, before the stream is passed to gRPC. Reads the first message, or
  // ends the stream if the host does not admit it.
  void Start(grpc::CallbackServerContext* context) {
    caller_ = CallerOf(*context);
    encrypted_ = !IdentityNameOf(*context).empty();
    if (this->Begin(context, [this] { return Admit(); })) Read();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      // The client has closed its side, or is gone.
      this->End(OnHalfClose());
      return;
    }
    // A late message must not reclaim the place that this stream has lost.
    if (this->ended()) return;
    if (!std::exchange(spoken_, true)) this->Spoke();
    After after = After::kRead;
    const absl::Status status = ServePeer([this, &after]() -> absl::Status {
      COHORT_ASSIGN_OR_RETURN(after, Handle(request_));
      return absl::OkStatus();
    });
    if (absl::IsPermissionDenied(status)) NoteDenied(status);
    if (!status.ok()) {
      this->End(status);
    } else if (after == After::kRead) {
      Read();
    }
    // If paused, another thread may already be reading.
  }

 protected:
  // The client; fixed from Start on.
  const Caller& caller() const { return caller_; }
  bool encrypted() const { return encrypted_; }

  void Read() {
    request_.Clear();
    this->UnlessEnded([this] { this->StartRead(&request_); });
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

  // The next step after a message.
  enum class After {
    kRead,
    // Do nothing until the stream calls Read itself.
    kPause,
  };

  // Admits the stream. Errors: those of StreamRegistry::Admit.
  virtual absl::Status Admit() {
    PartitionsHost& host = run_.partitions();
    return host.Admit(host.streams(), this->shared_from_this(),
                      /*speaks=*/true);
  }
  // A stream overrides Handle if it may be paused, otherwise OnMessage. Must
  // not block. A status that is not OK ends the stream.
  virtual absl::StatusOr<After> Handle(const grpc::ByteBuffer& message) {
    COHORT_RETURN_IF_ERROR(OnMessage(message));
    return After::kRead;
  }
  virtual absl::Status OnMessage(const grpc::ByteBuffer& /*message*/) {
    return absl::OkStatus();
  }
  // The status with which the stream ends when the client sends nothing more.
  virtual absl::Status OnHalfClose() { return absl::OkStatus(); }

  RunHost& run_;

 private:
  void NoteDenied(const absl::Status& status) {
    run_.DeniedRank(caller_.name);
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
ByteBidiReactor* Started(RunHost& run, grpc::CallbackServerContext* context,
                         Arguments... arguments) {
  const auto stream = std::make_shared<Stream>(run, arguments...);
  stream->Start(context);
  return stream.get();
}

}  // namespace cohort
