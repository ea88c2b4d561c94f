#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "cohort/v1/parameters.pb.h"
#include "common/byte_rope.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"
#include "common/wire/framed_message.h"
#include "common/wire/message_checksum.h"
#include "server/local/local_door.h"
#include "server/local/local_peer.h"
#include "server/rpc/exchange_messages.h"
#include "server/rpc/sender_check.h"
#include "server/rpc/worker_stream.h"
#include "server/run/model_limits.h"

namespace cohort {
namespace {

// The stream of one worker: gradients in, weights out. At the server that
// coordinates the run also openings, closings and verdicts.
class ExchangeReactor final : public WorkerStream<ExchangeStream> {
 public:
  // As WorkerStream; `local`, which is null if there is no shared memory, must
  // outlive the stream.
  ExchangeReactor(PartitionsHost& host, RunHost* run, const LocalDoor* local)
      : WorkerStream(host, run), local_(local) {}

  // While the stream is paused nothing is being read, so no failing read
  // reports it.
  void OnCancel() override {
    End(absl::CancelledError("the peer disconnected"));
  }

  void Resume() override { Read(); }

  void SendWeights(const WeightsMessage& weights) override {
    std::optional<SharedPlace> place;
    if (peer_ != nullptr) place = peer_->Share(weights.key, weights.weights);
    Send(EncodeWeights(weights, /*checksums=*/!encrypted(), place));
  }

  void SendVerdict(const effect::SendVerdict& verdict) override {
    v1::ExchangeReply reply;
    ToProto(verdict.key, reply.mutable_key());
    ToProto(verdict.verdict, verdict.weights_partitions,
            reply.mutable_verdict());
    if (verdict.statistics != nullptr) {
      ToProto(verdict.statistics->front().layers,
              reply.mutable_verdict()->mutable_statistics());
    }
    AddMessageChecksum(&reply);
    Send(EncodeFramed(reply, ByteRope()));
  }

 protected:
  // Allows the weights of some versions, which exist anyway: a worker may still
  // read those of one push while the next push is answered.
  int64_t QueueBytesMax() const override { return queue_bytes_max_; }

 private:
  static constexpr int64_t kModelsQueued = 3;

  absl::StatusOr<Reading> Handle(const grpc::ByteBuffer& message) override {
    COHORT_ASSIGN_OR_RETURN(FramedMessage<v1::ExchangeRequest> framed,
                            DecodeFramed<v1::ExchangeRequest>(message));
    COHORT_RETURN_IF_ERROR(TakeMessageChecksum(&framed.header));
    const v1::ExchangeRequest& request = framed.header;
    COHORT_ASSIGN_OR_RETURN(const Sender sender, FromProto(request.sender()));
    COHORT_RETURN_IF_ERROR(one_sender_.Check(caller(), sender));
    COHORT_ASSIGN_OR_RETURN(const PushKey key, FromProto(request.key()));
    const std::shared_ptr<ExchangeReactor> self = SharedFrom(this);
    if (queue_bytes_max_ == kQueueBytesMax) SetQueueBytes();
    if (!std::exchange(looked_for_peer_, true) && local_ != nullptr) {
      peer_ = local_->Find(sender.rank, sender.incarnation);
    }
    if (request.has_gradient()) {
      if (request.gradient().in_arena()) {
        COHORT_ASSIGN_OR_RETURN(framed.payload, InArena(request.gradient()));
      }
      COHORT_ASSIGN_OR_RETURN(
          ReceivedGradient gradient,
          DecodeGradient(request.gradient(),
                         host_.Counted(std::move(framed.payload))));
      return host_.Gradient(sender, key, std::move(gradient), self);
    }
    if (run_ == nullptr) {
      return absl::InvalidArgumentError(
          "exchange: got another message than a gradient at a data shard; "
          "openings and closings go to shard 0");
    }
    if (request.has_opening()) {
      COHORT_ASSIGN_OR_RETURN(const PushOpening opening,
                              FromProto(request.opening()));
      COHORT_RETURN_IF_ERROR(run_->Open(sender, key, opening, self));
      if (peer_ != nullptr) peer_->Opened(key);
      return Reading::kGoesOn;
    }
    if (request.has_closing()) {
      COHORT_ASSIGN_OR_RETURN(PushClosing closing,
                              FromProto(request.closing()));
      COHORT_RETURN_IF_ERROR(
          run_->Close(sender, key, std::move(closing), self));
      return Reading::kGoesOn;
    }
    return absl::InvalidArgumentError(
        "exchange: got a message with neither opening, gradient nor closing");
  }

  absl::StatusOr<ByteRope> InArena(const v1::GradientPartition& proto) const {
    COHORT_ASSIGN_OR_RETURN(const ElementType type,
                            ElementTypeOf(proto.encoding()));
    if (peer_ != nullptr) return peer_->Gradient(proto.partition(), type);
    return absl::FailedPreconditionError(
        "exchange: got a gradient in shared memory, want its bytes: this "
        "worker has not connected to the server's socket");
  }

  void SetQueueBytes() {
    const SharedModel model = host_.model();
    if (model == nullptr) return;
    queue_bytes_max_ =
        kQueueBytesMax + kModelsQueued * WeightBytes(model->layout);
  }

  const LocalDoor* const local_;
  // The worker's shared memory; null if it has none. Set by the reading side
  // with the first message, before there can be an answer.
  std::shared_ptr<LocalPeer> peer_;
  bool looked_for_peer_ = false;

  // Set by the reading side before there can be an answer. No other data
  // depends on it, so any memory order is enough.
  std::atomic<int64_t> queue_bytes_max_ = kQueueBytesMax;
  // Used by the reading side only.
  OneSender one_sender_;
};

}  // namespace

ByteBidiReactor* StartExchange(PartitionsHost& host, RunHost* run,
                               const StreamCall& call, const LocalDoor* local) {
  return Started<ExchangeReactor>(host, run, call, local);
}

}  // namespace cohort
