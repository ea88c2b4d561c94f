#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cohort/v1/moments.pb.h"
#include "common/moments.h"
#include "common/push.h"
#include "worker/client/bidi_stream.h"
#include "worker/client/client.h"
#include "worker/client/link.h"

namespace cohort {

// Moments.Reduce: one wait at a time, for one rendezvous or for several that
// were contributed to together, each as fast as the network.
class ReduceClient {
 public:
  struct Options {
    Sender sender;
    // Whether the server takes several contributions in one request; otherwise
    // each goes in one of its own.
    bool together = false;
  };

  // `link` must outlive the stream.
  ReduceClient(const std::shared_ptr<grpc::Channel>& channel, Link& link,
               Options options);

  // Contributes to each rendezvous and blocks until all members have.
  // Errors: Aborted if the step ends early; those of Link::CheckLocked.
  absl::StatusOr<std::vector<Moments>> Reduce(
      const ReducePass& pass, absl::Span<const CallMoments> local);

 private:
  // A rendezvous that is waited for.
  struct Wanted {
    ReduceKey key;
    std::optional<Moments> result;
  };

  void Send(const ReducePass& pass, absl::Span<const CallMoments> local);
  absl::Status AwaitLocked(const ReducePass& pass)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(link_.mu);
  absl::Status OnReply(v1::ReduceReply& reply);
  // Keeps what a reply or its part holds; true if nothing is open any more.
  template <typename Proto>
  absl::StatusOr<bool> Take(const Proto& proto) ABSL_LOCKS_EXCLUDED(link_.mu);
  // Null for what nobody waits for any more: it belongs to an ended step.
  Wanted* FindLocked(const ReduceKey& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(link_.mu);

  // Fixed after construction.
  Link& link_;
  const Options options_;
  grpc::TemplatedGenericStub<v1::ReduceRequest, grpc::ByteBuffer> stub_;

  // Of the driving thread; reused, so that a rendezvous allocates little.
  v1::ReduceRequest request_;

  // What was contributed last, and how many of it have no result yet.
  std::vector<Wanted> wanted_ ABSL_GUARDED_BY(link_.mu);
  size_t open_ ABSL_GUARDED_BY(link_.mu) = 0;
  // Why one of them never will.
  absl::Status aborted_ ABSL_GUARDED_BY(link_.mu);

  // Last, so that it ends before what its reactions use.
  BidiStream<v1::ReduceRequest, v1::ReduceReply> stream_;
};

}  // namespace cohort
