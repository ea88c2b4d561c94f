// The streams of workers at a data shard: gradients in, weights out. Openings,
// closings and verdicts pass through shard 0.

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cohort/v1/parameters.grpc.pb.h"
#include "common/byte_rope.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"
#include "common/wire/framed_message.h"
#include "common/wire/message_bytes.h"
#include "common/wire/message_checksum.h"
#include "server/core/model/model_snapshot.h"
#include "server/rpc/caller.h"
#include "server/rpc/data_streams.h"
#include "server/rpc/exchange_messages.h"
#include "server/rpc/pull_sender.h"
#include "server/rpc/queued_writes.h"
#include "server/rpc/sender_check.h"
#include "server/shard/fault.h"
#include "server/shard/model_limits.h"

namespace cohort {
namespace {

class DataExchangeReactor final
    : public QueuedWrites<ByteBidiReactor, grpc::ByteBuffer, ExchangeStream> {
 public:
  explicit DataExchangeReactor(DataHost& host)
      : QueuedWrites(host.streams()), host_(host) {}

  void Start(grpc::CallbackServerContext* context) {
    caller_ = CallerOf(*context);
    encrypted_ = !IdentityNameOf(*context).empty();
    const bool admitted = Begin(context, [this] {
      return host_.AdmitSpeaking(host_.streams(), shared_from_this());
    });
    if (admitted) Read();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End(absl::OkStatus());
    if (ended()) return;
    if (!std::exchange(spoken_, true)) Spoke();
    Admission admission = Admission::kTaken;
    const absl::Status status = ServePeer([this, &admission]() -> absl::Status {
      COHORT_ASSIGN_OR_RETURN(admission, Handle());
      return absl::OkStatus();
    });
    if (!status.ok()) {
      End(status);
    } else if (admission == Admission::kTaken) {
      Read();
    }
    // Else another thread may be reading already.
  }

  // While the stream is paused nothing is being read, so no failing read
  // reports it.
  void OnCancel() override {
    End(absl::CancelledError("the peer disconnected"));
  }

  void Resume(const effect::ResumeGradients& /*resume*/) override { Read(); }
  void SendWeights(const effect::SendWeights& weights) override {
    Send(EncodeWeights(weights, /*checksums=*/!encrypted_));
  }
  // Shard 0 sends it.
  void SendVerdict(const effect::SendVerdict& /*verdict*/) override {}

 protected:
  int64_t QueueBytesMax() const override {
    constexpr int64_t kModelsQueued = 3;
    const SharedModel model = host_.model();
    if (model == nullptr) return kQueueBytesMax;
    return kQueueBytesMax + kModelsQueued * WeightBytes(model->layout);
  }

 private:
  void Read() {
    UnlessEnded([this] {
      request_.Clear();
      StartRead(&request_);
    });
  }

  absl::StatusOr<Admission> Handle() {
    COHORT_ASSIGN_OR_RETURN(FramedMessage<v1::ExchangeRequest> framed,
                            DecodeFramed<v1::ExchangeRequest>(request_));
    COHORT_RETURN_IF_ERROR(TakeMessageChecksum(&framed.header));
    const v1::ExchangeRequest& request = framed.header;
    COHORT_ASSIGN_OR_RETURN(const Sender sender, FromProto(request.sender()));
    COHORT_RETURN_IF_ERROR(one_sender_.Check(caller_, sender));
    COHORT_ASSIGN_OR_RETURN(const PushKey key, FromProto(request.key()));
    if (!request.has_gradient() || request.gradient().in_arena()) {
      return absl::InvalidArgumentError(
          "exchange: got another message than a gradient with its bytes at a "
          "data shard; openings and closings go to shard 0");
    }
    COHORT_ASSIGN_OR_RETURN(
        GradientMessage gradient,
        DecodeGradient(request.gradient(),
                       host_.Counted(std::move(framed.payload))));
    return host_.Gradient(
        sender, key, std::move(gradient),
        std::static_pointer_cast<DataExchangeReactor>(shared_from_this()));
  }

  DataHost& host_;
  Caller caller_;
  bool encrypted_ = false;
  // Used by the reading side only.
  grpc::ByteBuffer request_;
  OneSender one_sender_;
  bool spoken_ = false;
};

// Sends the partitions of one version that this shard owns.
class DataPullReactor final : public PullSender {
 public:
  explicit DataPullReactor(DataHost& host)
      : PullSender(host.streams(), host.pulls(), host.counters(), host.clock()),
        host_(host) {}

  void Start(grpc::CallbackServerContext* context,
             const grpc::ByteBuffer& request) {
    connection_ = ConnectionOf(*context);
    Begin(context, [&] { return Ask(request); });
  }

  // It may wait for its version, and writes nothing that could fail.
  void OnCancel() override {
    End(absl::CancelledError("the peer disconnected"));
  }

 private:
  absl::Status Ask(const grpc::ByteBuffer& message) {
    COHORT_RETURN_IF_ERROR(host_.streams().Admit(shared_from_this()));
    COHORT_ASSIGN_OR_RETURN(v1::PullRequest request,
                            DecodeMessage<v1::PullRequest>(message));
    COHORT_RETURN_IF_ERROR(TakeMessageChecksum(&request));
    ReaderBelief belief{.run_id = request.run_id()};
    if (request.has_generation()) belief.generation = request.generation();
    if (request.has_shard()) belief.shard = request.shard();
    if (!request.has_version()) {
      if (!request.has_shard()) {
        return absl::InvalidArgumentError(
            "pull: got no version at a data shard, want the one that shard 0 "
            "has named");
      }
      COHORT_RETURN_IF_ERROR(host_.Serves(belief));
      End(absl::OkStatus());
      return absl::OkStatus();
    }
    const bool averages = request.statistics_kind() == "average";
    host_.Read(
        belief, Version(request.version()),
        [self = std::static_pointer_cast<DataPullReactor>(shared_from_this()),
         averages](absl::StatusOr<SharedSnapshot> snapshot) {
          self->Answer(std::move(snapshot), averages);
        });
    return absl::OkStatus();
  }

  void Answer(absl::StatusOr<SharedSnapshot> snapshot, bool averages) {
    if (!snapshot.ok()) return End(snapshot.status());
    const absl::Status placed = TakePlace(connection_, (*snapshot)->version);
    if (!placed.ok()) return End(placed);
    weights_ = WeightsToRead(**snapshot, averages);
    v1::PullReply reply;
    reply.mutable_header()->set_version((*snapshot)->version.value());
    AddMessageChecksum(&reply);
    Send(EncodeFramed(reply, ByteRope()));
  }

  DataHost& host_;
  // Fixed by Start.
  std::string connection_;
};

using RawDataParameters = v1::Parameters::WithRawCallbackMethod_Exchange<
    v1::Parameters::WithRawCallbackMethod_Pull<v1::Parameters::Service>>;

class DataParametersService final : public RawDataParameters {
 public:
  explicit DataParametersService(DataHost& host) : host_(host) {}

  ByteBidiReactor* Exchange(grpc::CallbackServerContext* context) override {
    const auto stream = std::make_shared<DataExchangeReactor>(host_);
    stream->Start(context);
    return stream.get();
  }
  ByteWriteReactor* Pull(grpc::CallbackServerContext* context,
                         const grpc::ByteBuffer* request) override {
    const auto stream = std::make_shared<DataPullReactor>(host_);
    stream->Start(context, *request);
    return stream.get();
  }

 private:
  DataHost& host_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeDataParametersService(DataHost& host) {
  return std::make_unique<DataParametersService>(host);
}

}  // namespace cohort
