#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cohort/v1/moments.pb.h"
#include "server/core/events/effects.h"
#include "server/run/run_host.h"
#include "server/streams/streams.h"

// The messages of Moments.Reduce, whichever way they come and go.
namespace cohort {

struct ReduceMessage {
  Sender sender;
  // Whether the client reads ReduceReply.further.
  bool takes_further = false;
  std::vector<MomentsMessage> contributions;
};

// Errors: InvalidArgument.
absl::StatusOr<ReduceMessage> ReduceMessageFrom(
    const v1::ReduceRequest& request);

// One reply with all results, which must not be empty. The message in `encoded`
// is used if it is the one for these results; otherwise it is replaced.
grpc::ByteBuffer EncodeResults(
    absl::Span<const effect::ReduceResult* const> results,
    EncodedResults& encoded);

v1::ReduceReply ReplyFor(const effect::ReduceAborted& aborted);

}  // namespace cohort
