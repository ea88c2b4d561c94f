#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cohort/v1/membership.pb.h"
#include "common/clock.h"
#include "common/departure.h"
#include "common/ids.h"
#include "common/wire/bidi_stream.h"
#include "worker/client/client_hooks.h"
#include "worker/client/link.h"

namespace cohort {

// Membership.Session: one incarnation of this worker, or its return to one.
// Assignments and ended steps go to the link's tracker; the end of the stream
// breaks the link.
//
// Thread safety: Heartbeat may be called from another thread.
class SessionClient {
 public:
  // Opens the stream and sends `join`. `link` and `hooks`, which may be null,
  // must outlive it.
  SessionClient(const std::shared_ptr<grpc::Channel>& channel, Link& link,
                const v1::Join& join, ClientHooks* hooks = nullptr);

  // Blocks until the server has answered the join.
  // Errors: the stream's end, DeadlineExceeded, Cancelled.
  absl::StatusOr<v1::JoinReply> AwaitJoined(Instant deadline);

  // The process that answered, as a channel's target; after AwaitJoined.
  std::string peer() const { return stream_.peer(); }

  // Skipped while an earlier message is still being sent.
  void Heartbeat();

  // Says good-bye and waits at most `patience` for the server to close.
  void Leave(const Departure& departure, absl::Duration patience);

 private:
  absl::Status OnMessage(v1::SessionReply& reply);
  absl::Status OnStepAborted(const v1::StepAborted& notice);
  void OnHeartbeatEcho(const v1::HeartbeatEcho& echo) const;

  Link& link_;
  ClientHooks* const hooks_;
  grpc::TemplatedGenericStub<v1::SessionRequest, grpc::ByteBuffer> stub_;
  std::optional<v1::JoinReply> joined_ ABSL_GUARDED_BY(link_.mu);
  // Last, so that it is destroyed before the members that its reactions use.
  BidiStream<v1::SessionRequest, v1::SessionReply> stream_;
};

}  // namespace cohort
