#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "cohort/v1/moments.pb.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"
#include "common/wire/message_bytes.h"
#include "common/wire/message_checksum.h"
#include "server/rpc/sender_check.h"
#include "server/rpc/shard_stream.h"

namespace cohort {
namespace {

// The limit for one request; models have few sibling layers.
constexpr int kContributionsMax = 64;

// Decodes a request or one of its parts.
template <typename Proto>
absl::StatusOr<Contribution> ContributionOf(const Proto& proto) {
  Contribution contribution;
  COHORT_ASSIGN_OR_RETURN(contribution.key, FromProto(proto.key()));
  COHORT_ASSIGN_OR_RETURN(
      contribution.moments,
      DecodeMoments(contribution.key.phase, proto.count(), proto.values()));
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

class ReduceReactor final : public ShardStream<ReduceStream> {
 public:
  using ShardStream::ShardStream;

  void SendResults(absl::Span<const effect::ReduceResult* const> results,
                   EncodedResults& encoded) override {
    // Relaxed: no other data is published with it, and a request is read before
    // there can be a result for it.
    const bool together = takes_further_.load(std::memory_order_relaxed);
    const size_t each = together ? results.size() : 1;
    for (size_t i = 0; i < results.size(); i += each) {
      SendTogether(results.subspan(i, each), encoded);
    }
  }

  void SendAborted(const effect::ReduceAborted& aborted) override {
    v1::ReduceReply reply;
    ToProto(aborted.key, reply.mutable_key());
    reply.set_aborted(aborted.reason);
    SendMessage(reply);
  }

 protected:
  absl::Status OnMessage(const grpc::ByteBuffer& message) override {
    COHORT_ASSIGN_OR_RETURN(v1::ReduceRequest request,
                            DecodeMessage<v1::ReduceRequest>(message));
    COHORT_RETURN_IF_ERROR(TakeMessageChecksum(&request));
    COHORT_ASSIGN_OR_RETURN(Sender sender, FromProto(request.sender()));
    COHORT_RETURN_IF_ERROR(one_sender_.Check(caller(), sender));
    takes_further_.store(request.takes_further_results(),
                         std::memory_order_relaxed);
    if (request.further_size() >= kContributionsMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          "rendezvous: got ", request.further_size() + 1,
          " contributions in one request, want at most ", kContributionsMax));
    }
    std::vector<Contribution> contributions(1);
    COHORT_ASSIGN_OR_RETURN(contributions[0], ContributionOf(request));
    for (const v1::ReducePart& part : request.further()) {
      COHORT_ASSIGN_OR_RETURN(contributions.emplace_back(),
                              ContributionOf(part));
    }
    return shard_.Reduce(sender, std::move(contributions), SharedFrom(this));
  }

 private:
  // A result belongs to one key, so equal results give equal messages.
  void SendTogether(absl::Span<const effect::ReduceResult* const> results,
                    EncodedResults& encoded) {
    std::vector<const Moments*> of;
    for (const effect::ReduceResult* result : results) {
      of.push_back(result->moments.get());
    }
    if (encoded.message == nullptr || encoded.of != of) {
      encoded = {
          .of = std::move(of),
          .message = std::make_shared<grpc::ByteBuffer>(Encode(results))};
    }
    // A copy of the buffer shares its slices.
    Send(*static_cast<const grpc::ByteBuffer*>(encoded.message.get()));
  }

  // Whether the client reads ReduceReply.further, as its newest request says.
  std::atomic<bool> takes_further_ = false;
  // Used by the reading side only.
  OneSender one_sender_;
};

}  // namespace

ByteBidiReactor* StartReduce(Shard& shard,
                             grpc::CallbackServerContext* context) {
  return Started<ReduceReactor>(shard, context);
}

}  // namespace cohort
