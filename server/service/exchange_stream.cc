#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
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

class ExchangeReactor final
    : public QueuedBidi<grpc::ByteBuffer, grpc::ByteBuffer, ExchangeStream> {
 public:
  explicit ExchangeReactor(Shard& shard)
      : QueuedBidi(shard.streams()), shard_(shard) {}

  void Start(grpc::CallbackServerContext* context) {
    const bool admitted = Begin(context, [this] {
      return shard_.AdmitStream(shared_from_this(), /*speaks=*/true);
    });
    if (admitted) Read();
  }

  void SendWeights(const effect::SendWeights& weights) override {
    v1::ExchangeReply reply;
    ToProto(weights.key, reply.mutable_key());
    v1::WeightsPartition* to = reply.mutable_weights();
    to->set_partition(weights.partition);
    to->set_version(weights.version.value());
    to->set_encoding(v1::ENCODING_FLOAT32);
    to->set_xxh3(weights.checksum);
    Send(EncodeFramed(reply, RopeOf(weights.weights)));
  }

  void SendVerdict(const effect::SendVerdict& verdict) override {
    v1::ExchangeReply reply;
    ToProto(verdict.key, reply.mutable_key());
    ToProto(verdict.verdict, verdict.weights_partitions,
            reply.mutable_verdict());
    Send(EncodeFramed(reply, ByteRope()));
  }

 protected:
  absl::Status OnMessage(const grpc::ByteBuffer& message) override {
    COHORT_ASSIGN_OR_RETURN(FramedMessage<v1::ExchangeRequest> framed,
                            DecodeFramed<v1::ExchangeRequest>(message));
    const v1::ExchangeRequest& request = framed.header;
    COHORT_ASSIGN_OR_RETURN(Sender sender, FromProto(request.sender()));
    COHORT_RETURN_IF_ERROR(one_sender_.Check(sender));
    COHORT_ASSIGN_OR_RETURN(PushKey key, FromProto(request.key()));
    const auto self =
        std::static_pointer_cast<ExchangeReactor>(shared_from_this());
    if (queue_bytes_max_ == kQueueBytesMax) SetQueueBytes();
    switch (request.part_case()) {
      case v1::ExchangeRequest::kOpening: {
        COHORT_ASSIGN_OR_RETURN(PushOpening opening,
                                FromProto(request.opening()));
        return shard_.Open(sender, key, opening, self);
      }
      case v1::ExchangeRequest::kGradient: {
        COHORT_ASSIGN_OR_RETURN(
            GradientMessage gradient,
            GradientFrom(request.gradient(), std::move(framed.payload)));
        return shard_.Gradient(sender, key, std::move(gradient), self);
      }
      case v1::ExchangeRequest::kClosing: {
        COHORT_ASSIGN_OR_RETURN(PushClosing closing,
                                FromProto(request.closing()));
        return shard_.Close(sender, key, std::move(closing), self);
      }
      case v1::ExchangeRequest::PART_NOT_SET:
        break;
    }
    return absl::InvalidArgumentError(
        "exchange: got neither opening, gradient nor closing");
  }

  // The weights of some versions that exist anyway: a worker may read those of
  // one push while the next one is answered.
  int64_t QueueBytesMax() const override { return queue_bytes_max_; }

 private:
  static constexpr int64_t kModelsQueued = 3;

  // Partition and length are the core's to check: it knows the layout.
  static absl::StatusOr<GradientMessage> GradientFrom(
      const v1::GradientPartition& proto, ByteRope payload) {
    COHORT_RETURN_IF_ERROR(CheckPayload(
        PayloadInfo{.encoding = proto.encoding()}, payload,
        payload.size_bytes() / static_cast<int64_t>(sizeof(float))));
    GradientMessage message{.partition = proto.partition(),
                            .checksum = payload.Checksum(),
                            .absent_slices = {proto.absent_slices().begin(),
                                              proto.absent_slices().end()}};
    // The core wants the checksum in any case, so it is computed once here.
    if (proto.has_xxh3() && proto.xxh3() != message.checksum) {
      return absl::DataLossError(absl::StrCat(
          "gradient of partition ", proto.partition(), ": got checksum ",
          absl::Hex(message.checksum), ", want ", absl::Hex(proto.xxh3())));
    }
    message.gradient = std::move(payload);
    return message;
  }

  void SetQueueBytes() {
    const SharedModel model = shard_.model();
    if (model == nullptr) return;
    queue_bytes_max_ =
        kQueueBytesMax + kModelsQueued * WeightBytes(model->layout);
  }

  Shard& shard_;
  // Set by the reading side before there can be an answer; a counter only, so
  // any order is enough.
  std::atomic<int64_t> queue_bytes_max_ = kQueueBytesMax;
  // Used by the reading side only.
  OneSender one_sender_;
};

}  // namespace

ByteBidiReactor* StartExchange(Shard& shard,
                               grpc::CallbackServerContext* context) {
  const auto stream = std::make_shared<ExchangeReactor>(shard);
  stream->Start(context);
  return stream.get();
}

}  // namespace cohort
