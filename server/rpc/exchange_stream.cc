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
#include "common/log/log.h"
#include "common/security/authenticator.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"
#include "common/wire/framed_message.h"
#include "common/wire/message_checksum.h"
#include "server/local/local_door.h"
#include "server/local/local_peer.h"
#include "server/rpc/caller.h"
#include "server/rpc/exchange_messages.h"
#include "server/rpc/queued_writes.h"
#include "server/rpc/sender_check.h"
#include "server/rpc/stream_starts.h"
#include "server/run/model_limits.h"
#include "server/streams/fault.h"

namespace cohort {
namespace {

// The stream of one worker: gradients in, weights out. At the server that
// coordinates the run also openings, closings and verdicts.
class ExchangeReactor final
    : public QueuedWrites<ByteBidiReactor, grpc::ByteBuffer, ExchangeStream> {
 public:
  // `run` is null at a data shard, `local` if there is no shared memory. All
  // must outlive the stream.
  ExchangeReactor(PartitionsHost& host, RunHost* run, const LocalDoor* local)
      : QueuedWrites(host.streams()), host_(host), run_(run), local_(local) {}

  void Start(grpc::CallbackServerContext* context) {
    caller_ = CallerOf(*context);
    encrypted_ = !IdentityNameOf(*context).empty();
    const bool admitted = Begin(context, [this] {
      return host_.Admit(host_.streams(), shared_from_this(), /*speaks=*/true);
    });
    if (admitted) Read();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End(absl::OkStatus());
    // A late message must not reclaim the place that this stream has lost.
    if (ended()) return;
    if (!std::exchange(spoken_, true)) Spoke();
    Reading reading = Reading::kGoesOn;
    const absl::Status status = ServePeer([this, &reading]() -> absl::Status {
      COHORT_ASSIGN_OR_RETURN(reading, Handle());
      return absl::OkStatus();
    });
    if (absl::IsPermissionDenied(status)) NoteDenied(status);
    if (!status.ok()) {
      End(status);
    } else if (reading == Reading::kGoesOn) {
      Read();
    }
    // Else another thread may be reading already.
  }

  // While the stream is paused nothing is being read, so no failing read
  // reports it.
  void OnCancel() override {
    End(absl::CancelledError("the peer disconnected"));
  }

  void Resume() override { Read(); }

  void SendWeights(const WeightsMessage& weights) override {
    std::optional<SharedPlace> place;
    if (peer_ != nullptr) place = peer_->Share(weights.key, weights.weights);
    Send(EncodeWeights(weights, /*checksums=*/!encrypted_, place));
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

  void Read() {
    UnlessEnded([this] {
      request_.Clear();
      StartRead(&request_);
    });
  }

  absl::StatusOr<Reading> Handle() {
    COHORT_ASSIGN_OR_RETURN(FramedMessage<v1::ExchangeRequest> framed,
                            DecodeFramed<v1::ExchangeRequest>(request_));
    COHORT_RETURN_IF_ERROR(TakeMessageChecksum(&framed.header));
    const v1::ExchangeRequest& request = framed.header;
    COHORT_ASSIGN_OR_RETURN(const Sender sender, FromProto(request.sender()));
    COHORT_RETURN_IF_ERROR(one_sender_.Check(caller_, sender));
    COHORT_ASSIGN_OR_RETURN(const PushKey key, FromProto(request.key()));
    const auto self =
        std::static_pointer_cast<ExchangeReactor>(shared_from_this());
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

  void NoteDenied(const absl::Status& status) {
    if (run_ != nullptr) run_->DeniedRank(caller_.name);
    Log(LogLevel::kWarning,
        absl::StrCat("a message was refused: ", status.message()));
  }

  PartitionsHost& host_;
  RunHost* const run_;
  const LocalDoor* const local_;
  // Fixed by Start.
  Caller caller_;
  bool encrypted_ = false;
  // The worker's shared memory; null if it has none. Set by the reading side
  // with the first message, before there can be an answer.
  std::shared_ptr<LocalPeer> peer_;
  bool looked_for_peer_ = false;

  // Set by the reading side before there can be an answer. No other data
  // depends on it, so any memory order is enough.
  std::atomic<int64_t> queue_bytes_max_ = kQueueBytesMax;
  // Used by the reading side only.
  grpc::ByteBuffer request_;
  OneSender one_sender_;
  bool spoken_ = false;
};

}  // namespace

ByteBidiReactor* StartExchange(PartitionsHost& host, RunHost* run,
                               grpc::CallbackServerContext* context,
                               const LocalDoor* local) {
  const auto stream = std::make_shared<ExchangeReactor>(host, run, local);
  stream->Start(context);
  return stream.get();
}

}  // namespace cohort
