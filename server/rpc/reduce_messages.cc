#include "server/rpc/reduce_messages.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"
#include "common/wire/message_bytes.h"
#include "common/wire/message_checksum.h"

namespace cohort {
namespace {

// The limit for one request; models have few sibling layers.
constexpr int kContributionsMax = 64;

// Decodes a request or one of its parts.
template <typename Proto>
absl::StatusOr<MomentsMessage> ContributionOf(const Proto& proto) {
  MomentsMessage contribution;
  COHORT_ASSIGN_OR_RETURN(contribution.key, FromProto(proto.key()));
  COHORT_ASSIGN_OR_RETURN(contribution.moments,
                          DecodeMoments(contribution.key.place.phase,
                                        proto.count(), proto.values()));
  COHORT_ASSIGN_OR_RETURN(
      contribution.extents,
      ExtentsFrom(contribution.key.place.phase, proto.extents()));
  return contribution;
}

// Encodes into a reply or one of its parts.
template <typename Proto>
void Describe(const effect::ReduceResult& result, Proto& proto) {
  ToProto(result.key, proto.mutable_key());
  proto.set_count(result.moments->count);
  EncodeMoments(*result.moments, proto.mutable_values());
}

grpc::ByteBuffer Encode(absl::Span<const effect::ReduceResult* const> results) {
  v1::ReduceReply reply;
  Describe(*results.front(), reply);
  for (const effect::ReduceResult* further : results.subspan(1)) {
    Describe(*further, *reply.add_further());
  }
  AddMessageChecksum(&reply);
  return EncodeMessage(reply);
}

}  // namespace

absl::StatusOr<ReduceMessage> ReduceMessageFrom(
    const v1::ReduceRequest& request) {
  COHORT_ASSIGN_OR_RETURN(const Sender sender, FromProto(request.sender()));
  if (request.further_size() >= kContributionsMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rendezvous: got ", request.further_size() + 1,
        " contributions in one request, want at most ", kContributionsMax));
  }
  ReduceMessage message{.sender = sender,
                        .takes_further = request.takes_further_results()};
  COHORT_ASSIGN_OR_RETURN(message.contributions.emplace_back(),
                          ContributionOf(request));
  for (const v1::ReducePart& part : request.further()) {
    COHORT_ASSIGN_OR_RETURN(message.contributions.emplace_back(),
                            ContributionOf(part));
  }
  return message;
}

grpc::ByteBuffer EncodeResults(
    absl::Span<const effect::ReduceResult* const> results,
    EncodedResults& encoded) {
  // A result belongs to one key, so equal results give equal messages.
  std::vector<const Moments*> of;
  for (const effect::ReduceResult* result : results) {
    of.push_back(result->moments.get());
  }
  if (encoded.message == nullptr || encoded.of != of) {
    encoded = {.of = std::move(of),
               .message = std::make_shared<grpc::ByteBuffer>(Encode(results))};
  }
  // A copy of the buffer shares its slices.
  return *static_cast<const grpc::ByteBuffer*>(encoded.message.get());
}

v1::ReduceReply ReplyFor(const effect::ReduceAborted& aborted) {
  v1::ReduceReply reply;
  ToProto(aborted.key, reply.mutable_key());
  reply.set_aborted(aborted.reason);
  return reply;
}

}  // namespace cohort
