#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/support/byte_buffer.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/assignment.h"
#include "common/clock.h"
#include "common/push.h"
#include "worker/client/bulk_stream.h"
#include "worker/client/link.h"
#include "worker/client/shard_channels.h"

namespace cohort {

// Where a call on the bulk channel goes, and until when.
struct BulkTarget {
  std::shared_ptr<grpc::Channel> channel;
  // Must outlive the call.
  Link* link = nullptr;
  Sender sender;
  Instant deadline;
  // The deadline is at least this far away after each message: a big model, or
  // one that a thousand workers read at once, takes long as a whole.
  absl::Duration patience = absl::ZeroDuration();
  // The channel's server, if it is another one than the link's.
  std::string server = {};
  // For pulls of runs with several shards. Must outlive the call.
  ShardChannels* shards = nullptr;
};

// One call whose answers the driving thread reads in order. Its end does not
// break the link. The protocol bounds the data that has arrived and is not yet
// read: at most one whole model.
class BulkCall {
 public:
  // `name` is used in errors, such as "the pull".
  BulkCall(const BulkTarget& target, const std::string& method,
           const std::string& name);

  // Errors: the call's end as in Link::NormalizedEnd; those of
  //   Link::WaitLocked.
  absl::Status Send(const grpc::ByteBuffer& message);
  void FinishWrites() { stream_.FinishWrites(); }

  // Returns once Receive has something. Until then the server may report over
  // the session what the worker waits for; `on_wait` is called with it and
  // returns the new deadline.
  // Errors: those of Link::WaitLocked.
  absl::Status AwaitAnswer(
      const std::function<Instant(const Assignment& wait)>& on_wait);

  // The next message; absent once the server has ended the call with OK.
  // Errors: the call's end as in Link::NormalizedEnd; those of
  //   Link::WaitLocked.
  absl::StatusOr<std::optional<grpc::ByteBuffer>> Receive();

 private:
  // Waits until the next notification. Errors: those of Link::WaitLocked.
  absl::Status WaitLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(link_.mu);
  // A message was sent or received.
  void NoteProgress();

  // Fixed after construction.
  Link& link_;
  const std::string name_;
  const std::string server_;
  const absl::Duration patience_;

  // Used by the driving thread only.
  Instant deadline_;

  std::deque<grpc::ByteBuffer> received_ ABSL_GUARDED_BY(link_.mu);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(link_.mu);

  // Last, so that it is destroyed before the members that its reactions use.
  BulkStream stream_;
};

}  // namespace cohort
