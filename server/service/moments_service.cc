#include <grpcpp/grpcpp.h>

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "cohort/v1/moments.grpc.pb.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"
#include "server/service/queued_writes.h"
#include "server/service/sender_check.h"
#include "server/service/services.h"

namespace cohort {
namespace {

// As many as a request may hold; models have few siblings.
constexpr int kContributionsMax = 64;

// A request or its part.
template <typename Proto>
absl::StatusOr<Contribution> ContributionOf(const Proto& proto) {
  Contribution contribution;
  COHORT_ASSIGN_OR_RETURN(contribution.key, FromProto(proto.key()));
  COHORT_ASSIGN_OR_RETURN(
      contribution.moments,
      DecodeMoments(contribution.key.phase, proto.count(), proto.values()));
  return contribution;
}

// To a reply or its part.
template <typename Proto>
void Describe(const effect::ReduceResult& result, Proto& proto) {
  ToProto(result.key, proto.mutable_key());
  proto.set_count(result.moments->count);
  EncodeMoments(*result.moments, proto.mutable_values());
}

class ReduceReactor final
    : public QueuedBidi<v1::ReduceRequest, v1::ReduceReply, ReduceStream> {
 public:
  explicit ReduceReactor(Shard& shard)
      : QueuedBidi(shard.streams()), shard_(shard) {}

  void Start(grpc::CallbackServerContext* context) {
    const bool admitted = Begin(context, [this] {
      return shard_.AdmitStream(shared_from_this(), /*speaks=*/true);
    });
    if (admitted) Read();
  }

  void SendResults(
      absl::Span<const effect::ReduceResult* const> results) override {
    v1::ReduceReply reply;
    Describe(*results.front(), reply);
    for (const effect::ReduceResult* further : results.subspan(1)) {
      Describe(*further, *reply.add_further());
    }
    Send(std::move(reply));
  }

  void SendAborted(const effect::ReduceAborted& aborted) override {
    v1::ReduceReply reply;
    ToProto(aborted.key, reply.mutable_key());
    reply.set_aborted(aborted.reason);
    Send(std::move(reply));
  }

 protected:
  absl::Status OnMessage(const v1::ReduceRequest& request) override {
    COHORT_ASSIGN_OR_RETURN(Sender sender, FromProto(request.sender()));
    COHORT_RETURN_IF_ERROR(one_sender_.Check(sender));
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
    return shard_.Reduce(
        sender, std::move(contributions),
        std::static_pointer_cast<ReduceReactor>(shared_from_this()));
  }

 private:
  Shard& shard_;
  // Used by the reading side only.
  OneSender one_sender_;
};

class MomentsService final : public v1::Moments::CallbackService {
 public:
  explicit MomentsService(Shard& shard) : shard_(shard) {}

  grpc::ServerBidiReactor<v1::ReduceRequest, v1::ReduceReply>* Reduce(
      grpc::CallbackServerContext* context) override {
    const auto stream = std::make_shared<ReduceReactor>(shard_);
    stream->Start(context);
    return stream.get();
  }

 private:
  Shard& shard_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeMomentsService(Shard& shard) {
  return std::make_unique<MomentsService>(shard);
}

}  // namespace cohort
