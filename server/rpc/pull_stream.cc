#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cohort/v1/parameters.pb.h"
#include "common/byte_rope.h"
#include "common/float_buffer.h"
#include "common/run_id_check.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"
#include "common/wire/framed_message.h"
#include "common/wire/message_bytes.h"
#include "common/wire/message_checksum.h"
#include "server/rpc/queued_writes.h"
#include "server/rpc/stream_starts.h"

namespace cohort {
namespace {

constexpr size_t kKindLengthMax = 64;

// The moving statistics named `name`; the first if `name` is empty.
absl::StatusOr<const StatisticsSet*> SetOf(const ModelSnapshot& snapshot,
                                           const std::string& name) {
  std::vector<StatisticsKind> kinds;
  for (const StatisticsSet& set : *snapshot.statistics) {
    if (name.empty() || StatisticsName(set.kind) == name) return &set;
    kinds.push_back(set.kind);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("statistics_kind: got '", name.substr(0, kKindLengthMax),
                   "', want one of ", StatisticsNames(kinds), " at version ",
                   snapshot.version.value()));
}

// Empty for a process of this machine that came through a Unix socket: gRPC has
// the same name for all of them.
std::string ConnectionOf(const grpc::CallbackServerContext& context) {
  const std::string peer = context.peer();
  return absl::StartsWith(peer, "unix") ? "" : peer;
}

// Sends one version, a partition at a time, directly from the model's memory.
// Holds only the weights of that version, because its optimizer slots can be
// several times as large.
class PullReactor final
    : public QueuedWrites<ByteWriteReactor, grpc::ByteBuffer, PullStream> {
 public:
  explicit PullReactor(Shard& shard)
      : QueuedWrites(shard.streams()), shard_(shard) {}

  void Start(grpc::CallbackServerContext* context,
             const grpc::ByteBuffer& request) {
    const bool admitted = Begin(
        context, [&] { return Prepare(ConnectionOf(*context), request); });
    ServiceCounters& counters = shard_.counters();
    ServiceCounters::Add(admitted ? counters.pulls : counters.pulls_refused);
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
    ServiceCounters::Add(shard_.counters().pull_bytes_float32,
                         weights.size_bytes());
    Send(EncodeFramed(reply, weights));
  }

 protected:
  void OnGone() override {
    GiveTurns(shard_.pulls().Forget(this, shard_.clock().Now()));
  }
  absl::Duration ReaderPatience() const override { return absl::Seconds(15); }

  void OnQueueEmpty() override {
    // Those of data shards come from there.
    while (next_ < weights_.size() && weights_[next_] == nullptr) ++next_;
    if (next_ == weights_.size()) {
      End(absl::OkStatus());
      return;
    }
    GiveTurns(shard_.pulls().Await(this, shard_.clock().Now()));
  }

 private:
  static void GiveTurns(const PullTable::Turns& turns) {
    for (const std::shared_ptr<PullStream>& pull : turns) {
      pull->SendPartition();
    }
  }

  // Queues the header.
  absl::Status Prepare(const std::string& peer,
                       const grpc::ByteBuffer& message) {
    COHORT_RETURN_IF_ERROR(
        shard_.AdmitStream(shared_from_this(), /*speaks=*/false));
    COHORT_ASSIGN_OR_RETURN(v1::PullRequest request,
                            DecodeMessage<v1::PullRequest>(message));
    COHORT_RETURN_IF_ERROR(TakeMessageChecksum(&request));
    COHORT_RETURN_IF_ERROR(CheckRunId(request.run_id(), shard_.run_id()));
    std::optional<Version> version;
    if (request.has_version()) version = Version(request.version());
    COHORT_ASSIGN_OR_RETURN(const SharedSnapshot snapshot,
                            shard_.Read(version));
    COHORT_RETURN_IF_ERROR(TakePlace(peer, snapshot->version));
    const SharedModel model = shard_.model();

    v1::PullReply reply;
    v1::PullHeader* header = reply.mutable_header();
    header->set_version(snapshot->version.value());
    ToProto(model->layout, header->mutable_layout());
    ToProto(model->partitions, header->mutable_partitions());
    for (const std::string& address : shard_.data_addresses()) {
      header->add_further_shards(address);
    }
    if (shard_.shards() > 1) held_ = snapshot;
    COHORT_ASSIGN_OR_RETURN(const StatisticsSet* set,
                            SetOf(*snapshot, request.statistics_kind()));
    if (request.statistics()) {
      ToProto(set->layers, header->mutable_statistics());
    }
    if (snapshot->front_end_state != nullptr) {
      header->set_front_end_state(*snapshot->front_end_state);
    }
    if (request.weights()) {
      const SharedSnapshot read = set->kind == StatisticsKind::kAverage
                                      ? AverageOf(*snapshot)
                                      : snapshot;
      weights_ = read->weights;
    }
    AddMessageChecksum(&reply);
    Send(EncodeFramed(reply, ByteRope()));
    return absl::OkStatus();
  }

  absl::Status TakePlace(const std::string& peer, Version version) {
    StreamRegistry::Streams evicted;
    const absl::Status taken = shard_.pulls().Admit(
        std::static_pointer_cast<PullReactor>(shared_from_this()), peer,
        version, shard_.clock().Now(), evicted);
    for (const std::shared_ptr<Stream>& stream : evicted) {
      stream->Cut(
          absl::ResourceExhaustedError("another pull replaced this one because "
                                       "its answers were not being read"));
    }
    return taken;
  }

  Shard& shard_;

  // Fixed before the first write.
  std::vector<SharedFloats> weights_;
  // With several shards: makes the others hold the version meanwhile.
  SharedSnapshot held_;
  // Used by the first reaction and in its turns, which the table orders.
  size_t next_ = 0;
};

}  // namespace

ByteWriteReactor* StartPull(Shard& shard, grpc::CallbackServerContext* context,
                            const grpc::ByteBuffer& request) {
  const auto stream = std::make_shared<PullReactor>(shard);
  stream->Start(context, request);
  return stream.get();
}

}  // namespace cohort
