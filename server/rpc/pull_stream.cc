#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cohort/v1/parameters.pb.h"
#include "common/byte_rope.h"
#include "common/float_buffer.h"
#include "common/ids.h"
#include "common/run_id_check.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"
#include "common/wire/framed_message.h"
#include "common/wire/message_bytes.h"
#include "common/wire/message_checksum.h"
#include "server/partitions/pull_table.h"
#include "server/partitions/service_counters.h"
#include "server/rpc/queued_writes.h"
#include "server/rpc/stream_starts.h"
#include "server/streams/stream_registry.h"

namespace cohort {
namespace {

constexpr size_t kKindLengthMax = 64;

// The name of a call's connection. Empty for a process of this machine that
// came through a Unix socket: gRPC has the same name for all of them.
std::string ConnectionOf(const grpc::CallbackServerContext& context) {
  const std::string peer = context.peer();
  return absl::StartsWith(peer, "unix") ? "" : peer;
}

// The moving statistics named `name`; the first if `name` is empty.
absl::StatusOr<const StatisticsSet*> SetOf(const ModelVersion& version,
                                           const std::string& name) {
  std::vector<StatisticsKind> kinds;
  for (const StatisticsSet& set : *version.statistics) {
    if (name.empty() || StatisticsName(set.kind) == name) return &set;
    kinds.push_back(set.kind);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("statistics_kind: got '", name.substr(0, kKindLengthMax),
                   "', want one of ", StatisticsNames(kinds), " at version ",
                   version.version.value()));
}

// Sends a version, or the partitions of one that a data shard owns: one at a
// time and in its turn, directly from the model's memory.
class PullReactor final
    : public QueuedWrites<ByteWriteReactor, grpc::ByteBuffer, PullStream> {
 public:
  // `run` is null at a data shard. Both must outlive the stream.
  PullReactor(PartitionsHost& host, RunHost* run)
      : QueuedWrites(host.streams()), host_(host), run_(run) {}

  void Start(grpc::CallbackServerContext* context,
             const grpc::ByteBuffer& request) {
    connection_ = ConnectionOf(*context);
    const bool admitted = Begin(context, [&] { return Ask(request); });
    ServiceCounters& counters = host_.counters();
    ServiceCounters::Add(admitted ? counters.pulls : counters.pulls_refused);
  }

  // It may wait for its version, and writes nothing that could fail.
  void OnCancel() override {
    End(absl::CancelledError("the peer disconnected"));
  }

  // Its turns come one after the other, each after the write before.
  void SendPartition() override {
    const size_t partition = next_++;
    v1::PullReply reply;
    reply.set_partition(static_cast<int32_t>(partition));
    reply.set_encoding(v1::ENCODING_FLOAT32);
    reply.set_xxh3(weights_[partition]->Checksum());
    AddMessageChecksum(&reply);
    const ByteRope weights = RopeOf(weights_[partition]);
    ServiceCounters::Add(host_.counters().pull_bytes_float32,
                         weights.size_bytes());
    Send(EncodeFramed(reply, weights));
  }

 protected:
  void OnGone() override {
    GiveTurns(host_.pulls().Forget(this, host_.clock().Now()));
  }
  absl::Duration ReaderPatience() const override { return absl::Seconds(15); }
  void OnQueueEmpty() override {
    while (next_ < weights_.size() && weights_[next_] == nullptr) ++next_;
    if (next_ == weights_.size()) return End(absl::OkStatus());
    GiveTurns(host_.pulls().Await(this, host_.clock().Now()));
  }

 private:
  static void GiveTurns(const PullTable::Turns& turns) {
    for (const std::shared_ptr<PullStream>& pull : turns) pull->SendPartition();
  }

  absl::Status Ask(const grpc::ByteBuffer& message) {
    COHORT_RETURN_IF_ERROR(host_.Admit(host_.streams(), shared_from_this(),
                                       /*speaks=*/false));
    COHORT_ASSIGN_OR_RETURN(request_, DecodeMessage<v1::PullRequest>(message));
    COHORT_RETURN_IF_ERROR(TakeMessageChecksum(&request_));
    ReaderBelief belief{.run_id = request_.run_id()};
    if (request_.has_generation()) belief.generation = request_.generation();
    if (request_.has_shard()) belief.shard = request_.shard();
    if (run_ == nullptr) return AskDataShard(belief);
    const std::string run_id = run_->facts().run_id;
    COHORT_RETURN_IF_ERROR(CheckRunId(request_.run_id(), run_id));
    if (request_.has_shard()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "got a call for data shard ", request_.shard(),
          ", but this is the server that coordinates the run; the addresses "
          "lead to different processes from here and from there"));
    }
    std::optional<Version> version;
    if (request_.has_version()) version = Version(request_.version());
    COHORT_ASSIGN_OR_RETURN(held_, run_->Find(version));
    COHORT_ASSIGN_OR_RETURN(set_, SetOf(*held_, request_.statistics_kind()));
    // The run has named the version, so it is here or about to come.
    Read({.run_id = run_id}, held_->version);
    return absl::OkStatus();
  }

  absl::Status AskDataShard(const ReaderBelief& belief) {
    if (request_.has_version()) {
      Read(belief, Version(request_.version()));
      return absl::OkStatus();
    }
    if (!request_.has_shard()) {
      return absl::InvalidArgumentError(
          "pull: got no version at a data shard, want the one that shard 0 has "
          "named");
    }
    COHORT_RETURN_IF_ERROR(host_.Serves(belief));
    End(absl::OkStatus());
    return absl::OkStatus();
  }

  void Read(const ReaderBelief& belief, Version version) {
    host_.Read(
        belief, version,
        [self = std::static_pointer_cast<PullReactor>(shared_from_this())](
            const absl::StatusOr<SharedSnapshot>& snapshot) {
          const absl::Status answered =
              snapshot.ok() ? self->Answer(**snapshot) : snapshot.status();
          if (!answered.ok()) self->End(answered);
        });
  }

  // Queues the header.
  absl::Status Answer(const ModelSnapshot& snapshot) {
    COHORT_RETURN_IF_ERROR(TakePlace(snapshot.version));
    bool averages = request_.statistics_kind() == "average";
    v1::PullReply reply;
    v1::PullHeader* header = reply.mutable_header();
    header->set_version(snapshot.version.value());
    if (run_ != nullptr) {
      Describe(*header);
      averages = set_->kind == StatisticsKind::kAverage;
    }
    if (run_ == nullptr || request_.weights()) {
      weights_ = WeightsToRead(snapshot, averages);
    }
    AddMessageChecksum(&reply);
    Send(EncodeFramed(reply, ByteRope()));
    return absl::OkStatus();
  }

  // Comes before the first write. Errors: those of PullTable::Admit.
  absl::Status TakePlace(Version version) {
    StreamRegistry::Streams evicted;
    const absl::Status taken = host_.pulls().Admit(
        std::static_pointer_cast<PullReactor>(shared_from_this()), connection_,
        version, host_.clock().Now(), evicted);
    for (const std::shared_ptr<Stream>& stream : evicted) {
      stream->Cut(
          absl::ResourceExhaustedError("another pull replaced this one because "
                                       "its answers were not being read"));
    }
    return taken;
  }

  void Describe(v1::PullHeader& header) const {
    const SharedModel model = host_.model();
    ToProto(model->layout, header.mutable_layout());
    ToProto(model->partitions, header.mutable_partitions());
    const RunFacts facts = run_->facts();
    if (facts.shards > 1) {
      for (const std::string& address : facts.data_addresses) {
        header.add_further_shards(address);
      }
      header.set_generation(facts.generation);
    }
    if (request_.statistics()) {
      ToProto(set_->layers, header.mutable_statistics());
    }
    if (held_->front_end_state != nullptr) {
      header.set_front_end_state(*held_->front_end_state);
    }
  }

  PartitionsHost& host_;
  RunHost* const run_;
  // Fixed by Start, before the version is there.
  std::string connection_;
  v1::PullRequest request_;
  // At the server that coordinates the run: makes the shards hold the version
  // for as long, and says which of its statistics are meant.
  SharedVersion held_;
  const StatisticsSet* set_ = nullptr;
  // By partition; null: another shard sends it. Fixed before the first write.
  // Only weights, because optimizer slots can be several times as large.
  std::vector<SharedFloats> weights_;
  // Used by the first reaction and in its turns, which the table orders.
  size_t next_ = 0;
};

}  // namespace

ByteWriteReactor* StartPull(PartitionsHost& host, RunHost* run,
                            grpc::CallbackServerContext* context,
                            const grpc::ByteBuffer& request) {
  const auto stream = std::make_shared<PullReactor>(host, run);
  stream->Start(context, request);
  return stream.get();
}

}  // namespace cohort
