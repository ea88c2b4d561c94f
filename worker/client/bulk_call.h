#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/support/byte_buffer.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "worker/client/bulk_stream.h"
#include "worker/client/link.h"

namespace cohort {

// What a call on the bulk channel needs.
struct BulkTarget {
  std::shared_ptr<grpc::Channel> channel;
  // Outlives the call.
  Link* link = nullptr;
  Sender sender;
  // When to give up.
  Instant deadline;
};

// One call whose answers the driving thread reads in order. Its end does not
// break the link. What has arrived and is not yet read is bounded by the
// call itself: at most one whole model.
class BulkCall {
 public:
  // `name` is used in errors, such as "the pull".
  BulkCall(const BulkTarget& target, const std::string& method,
           const std::string& name);

  // Errors: the call's end as in Link::NormalizedEnd; those of
  //   Link::WaitLocked.
  absl::Status Send(const grpc::ByteBuffer& message);
  void FinishWrites() { stream_.FinishWrites(); }

  // The next message; absent once the server has ended the call with OK.
  // Errors: the call's end as in Link::NormalizedEnd; those of
  //   Link::WaitLocked.
  absl::StatusOr<std::optional<grpc::ByteBuffer>> Receive();

 private:
  // Fixed after construction.
  Link& link_;
  const Instant deadline_;
  const std::string name_;

  std::deque<grpc::ByteBuffer> received_ ABSL_GUARDED_BY(link_.mu);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(link_.mu);

  // Last, so that it ends before what its reactions use.
  BulkStream stream_;
};

}  // namespace cohort
