// The side of a data shard in the calls of shard 0.

#include <grpcpp/grpcpp.h>

#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "cohort/v1/data_shard.grpc.pb.h"
#include "common/limits.h"
#include "common/status_macros.h"
#include "common/wire/message_bytes.h"
#include "common/wire/message_checksum.h"
#include "server/rpc/data_messages.h"
#include "server/rpc/queued_writes.h"
#include "server/rpc/services.h"
#include "server/rpc/stream_starts.h"
#include "server/rpc/worker_stream.h"

namespace cohort {
namespace {

// The connection of shard 0: commands in, gradients and folds out. What the
// host holds belongs to it, so however it ends, it detaches. The reading side
// runs on gRPC's threads, one message at a time; any thread may send. The host
// has a reference until it detaches; gRPC's is the last (QueuedWrites).
class AttachReactor final : public WorkerStream<CoordinatorStream> {
 public:
  AttachReactor(PartitionsHost& host, RunHost* run)
      : WorkerStream(host, run, host.links()) {}

  void SendGradient(const RemoteGradient& gradient) override {
    v1::ShardReport report;
    ToProto(gradient, report.mutable_gradient());
    SendMessage(report);
  }
  void SendFold(const FoldReport& fold) override {
    v1::ShardReport report;
    ToProto(fold, report.mutable_folded());
    SendMessage(report);
  }

  void SendAlive() override {
    v1::ShardReport report;
    report.set_alive(true);
    SendMessage(report);
  }

  void SendLeaving() override {
    v1::ShardReport report;
    report.set_leaving(true);
    SendMessage(report);
  }

  // Ends before it detaches: the host then ends it too, with a status that says
  // less, and the first one counts.
  void OnReadDone(bool ok) override {
    // Without it, the next read may destroy the stream.
    const auto self = SharedFrom(this);
    WorkerStream::OnReadDone(ok);
    if (ended()) host_.Detach(this);
  }

 protected:
  // For an end that no read has reported, such as that of Cut.
  void OnGone() override { host_.Detach(this); }
  int64_t QueueBytesMax() const override { return int64_t{256} << 20; }

  absl::Status OnMessage(const grpc::ByteBuffer& bytes) override {
    COHORT_ASSIGN_OR_RETURN(v1::ShardCommand message,
                            DecodeMessage<v1::ShardCommand>(bytes));
    COHORT_RETURN_IF_ERROR(TakeMessageChecksum(&message));
    if (!reader_.has_value()) return Attach(message);
    if (InstallationReader::Reads(message)) {
      COHORT_ASSIGN_OR_RETURN(const std::optional<Installation> model,
                              reader_->Take(message));
      return model.has_value() ? host_.Install(this, *model) : absl::OkStatus();
    }
    COHORT_ASSIGN_OR_RETURN(ShardCommand command, FromProto(message));
    return host_.Handle(this, std::move(command));
  }

 private:
  absl::Status Attach(const v1::ShardCommand& message) {
    const v1::AttachShard& attach = message.attach();
    if (!message.has_attach() || attach.shard() < 1 ||
        attach.shard() >= attach.shards() || attach.run_id().empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("attach: got shard ", attach.shard(), " of ",
                       attach.shards(), " of run '", attach.run_id(),
                       "', want the first command to name a shard from 1 on"));
    }
    if (attach.workers() < 1 || attach.workers() > limits::kWorkersMax ||
        attach.generation() < 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "attach: got ", attach.workers(), " workers and generation ",
          attach.generation(), ", want 1 to ", limits::kWorkersMax,
          " workers and a generation from 1 on"));
    }
    const ShardPlace place{.index = attach.shard(), .count = attach.shards()};
    COHORT_RETURN_IF_ERROR(host_.Attach({.run_id = attach.run_id(),
                                         .run_name = attach.run_name(),
                                         .generation = attach.generation(),
                                         .place = place,
                                         .workers = attach.workers(),
                                         // The gate has admitted only the first
                                         // server, by the table of rights.
                                         .authenticated = encrypted()},
                                        SharedFrom(this)));
    reader_.emplace(place);
    v1::ShardReport report;
    report.set_attached(true);
    SendMessage(report);
    return absl::OkStatus();
  }

  // Used by the reading side only. Absent before the stream is attached.
  std::optional<InstallationReader> reader_;
};

// Sends the partitions of one version to shard 0, a message at a time, and
// ends. It may wait for the commit that makes the version.
class FetchReactor final
    : public QueuedWrites<ByteWriteReactor, grpc::ByteBuffer, Stream> {
 public:
  explicit FetchReactor(PartitionsHost& host)
      : QueuedWrites(host.links()), host_(host) {}

  void Start(grpc::CallbackServerContext* context,
             const grpc::ByteBuffer& request) {
    Begin(context, [&] {
      const absl::Status admitted = host_.links().Admit(shared_from_this());
      return admitted.ok() ? Prepare(request) : admitted;
    });
  }

 protected:
  // One message at a time.
  void OnQueueEmpty() override {
    while (buffers_.empty() && next_ < snapshot_->weights.size()) {
      Encode(next_++);
    }
    if (buffers_.empty()) return End(absl::OkStatus());
    // Before Send: the next reaction may run before it returns.
    const grpc::ByteBuffer next = buffers_.front();
    buffers_.pop_front();
    Send(next);
  }

 private:
  absl::Status Prepare(const grpc::ByteBuffer& message) {
    COHORT_ASSIGN_OR_RETURN(v1::FetchRequest request,
                            DecodeMessage<v1::FetchRequest>(message));
    COHORT_RETURN_IF_ERROR(TakeMessageChecksum(&request));
    // The commit that makes the version may still be on its way.
    host_.Read(
        {.run_id = request.run_id(), .generation = request.generation()},
        Version(request.version()),
        [self = std::static_pointer_cast<FetchReactor>(shared_from_this())](
            absl::StatusOr<SharedSnapshot> snapshot) {
          if (!snapshot.ok()) return self->End(snapshot.status());
          self->snapshot_ = *std::move(snapshot);
          self->OnQueueEmpty();
        });
    return absl::OkStatus();
  }

  // Each is a copy, so no more than one partition is encoded at a time.
  void Encode(size_t partition) {
    EncodePartition(*snapshot_, partition, [this](v1::ShardPartition& buffer) {
      buffers_.push_back(EncodeMessage(buffer));
    });
  }

  PartitionsHost& host_;
  // Fixed before the first write; the others are used by its reactions only.
  SharedSnapshot snapshot_;
  size_t next_ = 0;
  std::deque<grpc::ByteBuffer> buffers_;
};

using RawDataShards = v1::DataShards::WithRawCallbackMethod_Attach<
    v1::DataShards::WithRawCallbackMethod_Fetch<v1::DataShards::Service>>;

class DataShardsService final : public RawDataShards {
 public:
  DataShardsService(PartitionsHost& host, CallCounts& counts)
      : host_(host), counts_(counts) {}

  ByteBidiReactor* Attach(grpc::CallbackServerContext* context) override {
    return Started<AttachReactor>(
        host_, /*run=*/nullptr,
        {context, "/cohort.v1.DataShards/Attach", counts_});
  }
  ByteWriteReactor* Fetch(grpc::CallbackServerContext* context,
                          const grpc::ByteBuffer* request) override {
    const auto stream = std::make_shared<FetchReactor>(host_);
    stream->Start(context, *request);
    return stream.get();
  }

 private:
  PartitionsHost& host_;
  CallCounts& counts_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeDataShardsService(PartitionsHost& host,
                                                     CallCounts& counts) {
  return std::make_unique<DataShardsService>(host, counts);
}

}  // namespace cohort
