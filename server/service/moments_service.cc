#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/status/status.h"
#include "cohort/v1/moments.grpc.pb.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"
#include "server/service/queued_writes.h"
#include "server/service/sender_check.h"
#include "server/service/services.h"

namespace cohort {
namespace {

class ReduceReactor final
    : public QueuedBidi<v1::ReduceRequest, v1::ReduceReply, ReduceStream> {
 public:
  explicit ReduceReactor(Shard& shard)
      : QueuedBidi(shard.streams()), shard_(shard) {}

  void Start() {
    Begin();
    const absl::Status admitted = shard_.streams().Admit(shared_from_this());
    if (admitted.ok()) {
      Read();
    } else {
      End(admitted);
    }
  }

  void SendResult(const effect::ReduceResult& result) override {
    v1::ReduceReply reply;
    ToProto(result.key, reply.mutable_key());
    reply.set_count(result.moments->count);
    EncodeMoments(*result.moments, reply.mutable_values());
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
    COHORT_ASSIGN_OR_RETURN(ReduceKey key, FromProto(request.key()));
    COHORT_ASSIGN_OR_RETURN(
        Moments moments,
        DecodeMoments(key.phase, request.count(), request.values()));
    return shard_.Reduce(
        sender, key, std::move(moments),
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
      grpc::CallbackServerContext*) override {
    const auto stream = std::make_shared<ReduceReactor>(shard_);
    stream->Start();
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
