#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "cohort/v1/parameters.pb.h"
#include "common/byte_rope.h"
#include "common/float_buffer.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"
#include "common/wire/framed_message.h"
#include "common/wire/message_checksum.h"
#include "server/local/local_door.h"
#include "server/local/local_peer.h"
#include "server/rpc/exchange_messages.h"
#include "server/rpc/sender_check.h"
#include "server/rpc/shard_stream.h"

namespace cohort {
namespace {

// A gradient on its way to the shard, and its sender.
struct PausedGradient {
  Sender sender;
  PushKey key;
  GradientMessage message;
};

class ExchangeReactor final : public ShardStream<ExchangeStream> {
 public:
  // `local` is null if there is no shared memory; else it must outlive the
  // stream.
  ExchangeReactor(Shard& shard, const LocalDoor* local)
      : ShardStream(shard), local_(local) {}

  void SendWeights(const effect::SendWeights& weights) override {
    std::optional<SharedPlace> place;
    if (peer_ != nullptr) place = peer_->Share(weights.key, weights.weights);
    Send(EncodeWeights(weights, /*checksums=*/!encrypted(), place));
  }

  void Resume(const effect::ResumeGradients& /*resume*/) override {
    {
      MutexLock lock(pause_mu_);
      if (state_ != State::kPaused) {
        resumed_ = true;
        return;
      }
      state_ = State::kHandingOver;
    }
    const absl::StatusOr<After> after = HandOver();
    if (!after.ok()) {
      End(after.status());
    } else if (*after == After::kRead) {
      Read();
    }
  }

  // While the stream is paused nothing is being read, so no failing read
  // reports it.
  void OnCancel() override {
    End(absl::CancelledError("the peer disconnected"));
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
  absl::StatusOr<After> Handle(const grpc::ByteBuffer& message) override {
    COHORT_ASSIGN_OR_RETURN(FramedMessage<v1::ExchangeRequest> framed,
                            DecodeFramed<v1::ExchangeRequest>(message));
    COHORT_RETURN_IF_ERROR(TakeMessageChecksum(&framed.header));
    const v1::ExchangeRequest& request = framed.header;
    COHORT_ASSIGN_OR_RETURN(Sender sender, FromProto(request.sender()));
    COHORT_RETURN_IF_ERROR(one_sender_.Check(caller(), sender));
    COHORT_ASSIGN_OR_RETURN(PushKey key, FromProto(request.key()));
    const auto self = SharedFrom(this);
    if (queue_bytes_max_ == kQueueBytesMax) SetQueueBytes();
    if (!std::exchange(looked_for_peer_, true) && local_ != nullptr) {
      peer_ = local_->Find(sender.rank, sender.incarnation);
    }
    switch (request.part_case()) {
      case v1::ExchangeRequest::kOpening: {
        COHORT_ASSIGN_OR_RETURN(PushOpening opening,
                                FromProto(request.opening()));
        COHORT_RETURN_IF_ERROR(shard_.Open(sender, key, opening, self));
        if (peer_ != nullptr) peer_->Opened(key);
        return After::kRead;
      }
      case v1::ExchangeRequest::kGradient: {
        if (request.gradient().in_arena()) {
          COHORT_ASSIGN_OR_RETURN(framed.payload, InArena(request.gradient()));
        }
        COHORT_ASSIGN_OR_RETURN(
            GradientMessage gradient,
            DecodeGradient(request.gradient(),
                           shard_.Counted(std::move(framed.payload))));
        held_ = PausedGradient{
            .sender = sender, .key = key, .message = std::move(gradient)};
        return HandOver();
      }
      case v1::ExchangeRequest::kClosing: {
        COHORT_ASSIGN_OR_RETURN(PushClosing closing,
                                FromProto(request.closing()));
        COHORT_RETURN_IF_ERROR(
            shard_.Close(sender, key, std::move(closing), self));
        return After::kRead;
      }
      case v1::ExchangeRequest::PART_NOT_SET:
        break;
    }
    return absl::InvalidArgumentError(
        "exchange: got a message with neither opening, gradient nor closing");
  }

  // Allows the weights of some versions, which exist anyway: a worker may still
  // read those of one push while the next push is answered.
  int64_t QueueBytesMax() const override { return queue_bytes_max_; }

 private:
  static constexpr int64_t kModelsQueued = 3;

  absl::StatusOr<ByteRope> InArena(const v1::GradientPartition& proto) const {
    COHORT_ASSIGN_OR_RETURN(const ElementType type,
                            ElementTypeOf(proto.encoding()));
    if (peer_ != nullptr) return peer_->Gradient(proto.partition(), type);
    return absl::FailedPreconditionError(
        "exchange: got a gradient in shared memory, want its bytes: this "
        "worker has not connected to the server's socket");
  }

  enum class State {
    // Reading, or handling a message other than a gradient.
    kReading,
    kHandingOver,
    // `held_` waits for Resume, and nothing is being read.
    kPaused,
  };

  // Passes `held_` to the shard until the shard takes it or makes it wait.
  absl::StatusOr<After> HandOver() {
    const auto self = SharedFrom(this);
    for (;;) {
      {
        MutexLock lock(pause_mu_);
        state_ = State::kHandingOver;
        resumed_ = false;
      }
      const absl::StatusOr<Admission> admission =
          shard_.Gradient(held_.sender, held_.key, held_.message, self);
      MutexLock lock(pause_mu_);
      if (!admission.ok() || *admission == Admission::kTaken) {
        state_ = State::kReading;
        held_ = {};
        if (!admission.ok()) return admission.status();
        return After::kRead;
      }
      // Resume may have been called before this thread learned that there was
      // no room.
      if (resumed_) continue;
      // From here on Resume may run on another thread and read.
      state_ = State::kPaused;
      return After::kPause;
    }
  }

  void SetQueueBytes() {
    const SharedModel model = shard_.model();
    if (model == nullptr) return;
    queue_bytes_max_ =
        kQueueBytesMax + kModelsQueued * WeightBytes(model->layout);
  }

  // Null if there is no shared memory.
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
  // Used by the thread that hands over: the reading side, or Resume while the
  // reading side is paused.
  PausedGradient held_;

  Mutex pause_mu_;
  State state_ ABSL_GUARDED_BY(pause_mu_) = State::kReading;
  // Whether Resume was called during the hand-over.
  bool resumed_ ABSL_GUARDED_BY(pause_mu_) = false;
};

}  // namespace

ByteBidiReactor* StartExchange(Shard& shard,
                               grpc::CallbackServerContext* context,
                               const LocalDoor* local) {
  return Started<ExchangeReactor>(shard, context, local);
}

}  // namespace cohort
