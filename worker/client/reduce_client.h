#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cohort/v1/moments.pb.h"
#include "common/moments.h"
#include "common/push.h"
#include "common/wire/bidi_stream.h"
#include "worker/client/client.h"
#include "worker/client/link.h"
#include "worker/client/local_link.h"

namespace cohort {

// Moments.Reduce, over gRPC or, on the server's host, through shared memory.
// One wait at a time, either for one rendezvous or for several that were
// contributed to together.
class ReduceClient {
 public:
  struct Options {
    Sender sender;
    // Null: over gRPC. Must outlive the client.
    LocalLink* local = nullptr;
  };

  // `link` must outlive the client.
  ReduceClient(const std::shared_ptr<grpc::Channel>& channel, Link& link,
               Options options);

  // Contributes to each rendezvous and blocks until all members have.
  // Errors: Aborted if the step ends early; those of Link::CheckLocked.
  absl::StatusOr<std::vector<Moments>> Reduce(
      const ReducePass& pass, absl::Span<const Contribution> local);

 private:
  // A rendezvous that the driving thread waits for.
  struct Wanted {
    ReduceKey key;
    std::optional<Moments> result;
  };

  using Stream = BidiStream<v1::ReduceRequest, v1::ReduceReply>;

  absl::Status Send(const ReducePass& pass,
                    absl::Span<const Contribution> local);
  // Waits until no result is missing.
  absl::Status Await(const ReducePass& pass) ABSL_LOCKS_EXCLUDED(link_.mu);
  // An error if the wait is over without all results.
  absl::Status CheckLocked(const ReducePass& pass)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(link_.mu);
  // Handles the messages that are there in shared memory.
  absl::Status TakeLocalReplies() ABSL_LOCKS_EXCLUDED(link_.mu);
  absl::Status OnMail(absl::string_view mail) ABSL_LOCKS_EXCLUDED(link_.mu);
  absl::Status OnReply(v1::ReduceReply& reply);
  // Stores the result in a reply or its part; true if no result is missing.
  template <typename Proto>
  absl::StatusOr<bool> Take(const Proto& proto) ABSL_LOCKS_EXCLUDED(link_.mu);
  // Null if the result is no longer awaited: it belongs to an ended step.
  Wanted* FindLocked(const ReduceKey& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(link_.mu);

  // Fixed after construction.
  Link& link_;
  const Options options_;
  grpc::TemplatedGenericStub<v1::ReduceRequest, grpc::ByteBuffer> stub_;

  // Used by the driving thread only; reused, so that a rendezvous allocates
  // little.
  v1::ReduceRequest request_;
  std::string encoded_;
  v1::ReduceReply local_reply_;

  // The last contributions, and the number without a result yet.
  std::vector<Wanted> wanted_ ABSL_GUARDED_BY(link_.mu);
  size_t open_ ABSL_GUARDED_BY(link_.mu) = 0;
  // An error if a result will never arrive.
  absl::Status aborted_ ABSL_GUARDED_BY(link_.mu);

  // Null if messages go through shared memory. Last, so that it is destroyed
  // before the members that its reactions use.
  std::unique_ptr<Stream> stream_;
};

}  // namespace cohort
