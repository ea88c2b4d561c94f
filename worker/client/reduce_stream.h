#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cohort/v1/moments.grpc.pb.h"
#include "common/assignment.h"
#include "worker/client/bidi_stream.h"
#include "worker/client/link.h"

namespace cohort {

// Moments.Reduce: one rendezvous at a time, each as fast as the network.
class ReduceStream {
 public:
  // `link` must outlive the stream.
  ReduceStream(const std::shared_ptr<grpc::Channel>& channel, Link& link,
               const Sender& sender);

  // Contributes and blocks until all members have.
  // Errors: Aborted if the step ends early; those of Link::CheckLocked.
  absl::StatusOr<Moments> Reduce(const ReduceKey& key, const Moments& local);

 private:
  absl::Status OnReply(v1::ReduceReply& reply);

  // Fixed after construction.
  Link& link_;
  const Sender sender_;
  const std::unique_ptr<v1::Moments::Stub> stub_;

  // Of the driving thread; reused, so that a rendezvous allocates little.
  v1::ReduceRequest request_;

  // The rendezvous waited for, and its result.
  std::optional<ReduceKey> wanted_ ABSL_GUARDED_BY(link_.mu);
  std::optional<absl::StatusOr<Moments>> result_ ABSL_GUARDED_BY(link_.mu);

  // Last, so that it ends before what its reactions use.
  BidiStream<v1::ReduceRequest, v1::ReduceReply> stream_;
};

}  // namespace cohort
