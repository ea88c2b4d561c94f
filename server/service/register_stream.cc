#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "cohort/v1/parameters.pb.h"
#include "common/byte_rope.h"
#include "common/float_buffer.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"
#include "common/wire/framed_message.h"
#include "server/service/parameters_streams.h"
#include "server/service/queued_writes.h"
#include "server/service/sender_check.h"

namespace cohort {
namespace {

class RegisterReactor final
    : public QueuedBidi<grpc::ByteBuffer, grpc::ByteBuffer, Stream> {
 public:
  explicit RegisterReactor(Shard& shard)
      : QueuedBidi(shard.streams()), shard_(shard) {}

  void Start(grpc::CallbackServerContext* context) {
    const bool admitted = Begin(context, [this] {
      return shard_.AdmitStream(shared_from_this(), /*speaks=*/true);
    });
    if (admitted) Read();
  }

 protected:
  absl::Status OnMessage(const grpc::ByteBuffer& message) override {
    COHORT_ASSIGN_OR_RETURN(
        FramedMessage<v1::RegisterRequest> framed,
        DecodeFramed<v1::RegisterRequest>(message, kLayoutBytesMax));
    COHORT_ASSIGN_OR_RETURN(Sender sender, FromProto(framed.header.sender()));
    COHORT_RETURN_IF_ERROR(one_sender_.Check(sender));
    if (!answer_.send_values) return OnLayout(framed.header, sender);
    COHORT_RETURN_IF_ERROR(OnValues(framed.header, framed.payload));
    return missing_ == 0 ? Finish(sender) : absl::OkStatus();
  }

 private:
  absl::Status OnLayout(const v1::RegisterRequest& request,
                        const Sender& sender) {
    COHORT_ASSIGN_OR_RETURN(layout_, FromProto(request.layout()));
    COHORT_RETURN_IF_ERROR(CheckModelLimits(layout_, shard_.model_needs()));
    COHORT_ASSIGN_OR_RETURN(plan_, FromProto(request.plan()));
    COHORT_ASSIGN_OR_RETURN(statistics_,
                            FromProto(request.statistics(), layout_));
    COHORT_ASSIGN_OR_RETURN(answer_,
                            shard_.BeginRegister(sender, layout_, plan_));
    if (answer_.send_values) {
      COHORT_RETURN_IF_ERROR(ExpectValues(sender));
    }
    values_.resize(answer_.partitions.size());
    missing_ = values_.size();
    v1::RegisterReply reply;
    ToProto(answer_.partitions, reply.mutable_partitions());
    reply.set_loss_reference(answer_.loss_reference);
    reply.set_send_values(answer_.send_values);
    reply.set_done(!answer_.send_values);
    Send(EncodeReply(reply));
    if (!answer_.send_values) End(absl::OkStatus());
    return absl::OkStatus();
  }

  // One registration a rank at a time, and a limit on their bytes in all.
  absl::Status ExpectValues(const Sender& sender) {
    COHORT_ASSIGN_OR_RETURN(
        reserved_,
        shard_.registrations().Take("initial values", WeightBytes(layout_)));
    const std::shared_ptr<Stream> older = shard_.streams().PutRegister(
        sender.rank, sender.incarnation, shared_from_this());
    if (older != nullptr) {
      older->End(
          absl::AbortedError("a newer registration of this worker took over"));
    }
    return absl::OkStatus();
  }

  absl::Status OnValues(const v1::RegisterRequest& request,
                        const ByteRope& payload) {
    const int32_t index = request.partition();
    if (index < 0 || static_cast<size_t>(index) >= values_.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "register: got partition ", index, ", want below ", values_.size()));
    }
    SharedFloats& place = values_[static_cast<size_t>(index)];
    if (place != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("register: got partition ", index, " twice"));
    }
    const int64_t elements =
        answer_.partitions[static_cast<size_t>(index)].elements;
    COHORT_RETURN_IF_ERROR(CheckPayload(request, payload, elements));
    // Copied once: the values outlive every message, and want alignment.
    auto buffer = std::make_shared<FloatBuffer>(elements);
    payload.CopyTo(absl::MakeSpan(reinterpret_cast<std::byte*>(buffer->data()),
                                  static_cast<size_t>(payload.size_bytes())));
    place = std::move(buffer);
    --missing_;
    return absl::OkStatus();
  }

  absl::Status Finish(const Sender& sender) {
    COHORT_RETURN_IF_ERROR(shard_.FinishRegister(
        sender, layout_, plan_, std::move(values_), std::move(statistics_)));
    v1::RegisterReply reply;
    // Another registrant may have been first, and its value rules.
    reply.set_loss_reference(shard_.model()->plan.loss_reference);
    reply.set_done(true);
    Send(EncodeReply(reply));
    End(absl::OkStatus());
    return absl::OkStatus();
  }

  // RegisterReply has no payload field.
  static grpc::ByteBuffer EncodeReply(const v1::RegisterReply& reply) {
    return EncodeFrame(reply, ByteRope());
  }

  Shard& shard_;

  // Used by the reading side only, whose reactions never overlap.
  OneSender one_sender_;
  ModelLayout layout_;
  RunPlan plan_;
  std::vector<LayerStatistics> statistics_;
  RegisterAnswer answer_;
  ReservedBytes::Reservation reserved_;
  std::vector<SharedFloats> values_;
  size_t missing_ = 0;
};

}  // namespace

ByteBidiReactor* StartRegister(Shard& shard,
                               grpc::CallbackServerContext* context) {
  const auto stream = std::make_shared<RegisterReactor>(shard);
  stream->Start(context);
  return stream.get();
}

}  // namespace cohort
