#include <grpcpp/grpcpp.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cohort/v1/parameters.pb.h"
#include "common/byte_rope.h"
#include "common/float_buffer.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"
#include "common/wire/framed_message.h"
#include "common/wire/message_checksum.h"
#include "server/service/parameters_streams.h"
#include "server/service/queued_writes.h"

namespace cohort {
namespace {

constexpr size_t kKindLengthMax = 64;

// The moving statistics of that name; the first if it is empty.
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

// Sends one version, a partition at a time, from the memory it lives in. The
// snapshot stays as it is for as long as this holds it.
class PullReactor final
    : public QueuedWrites<ByteWriteReactor, grpc::ByteBuffer, Stream> {
 public:
  explicit PullReactor(Shard& shard)
      : QueuedWrites(shard.streams()), shard_(shard) {}

  void Start(const grpc::ByteBuffer& request) {
    Begin();
    const absl::Status status = Prepare(request);
    ServiceCounters& counters = shard_.counters();
    ServiceCounters::Add(status.ok() ? counters.pulls : counters.pulls_refused);
    if (!status.ok()) End(status);
  }

 protected:
  void OnQueueEmpty() override {
    if (next_ == weights_end_) {
      End(absl::OkStatus());
      return;
    }
    const size_t partition = next_++;
    v1::PullReply reply;
    reply.set_partition(static_cast<int32_t>(partition));
    reply.set_encoding(v1::ENCODING_FLOAT32);
    reply.set_xxh3(snapshot_->checksums[partition]);
    AddMessageChecksum(&reply);
    const ByteRope weights = RopeOf(snapshot_->weights[partition]);
    ServiceCounters::Add(shard_.counters().pull_bytes, weights.size_bytes());
    Send(EncodeFramed(reply, weights));
  }

 private:
  // Queues the header.
  absl::Status Prepare(const grpc::ByteBuffer& message) {
    COHORT_RETURN_IF_ERROR(shard_.streams().Admit(shared_from_this()));
    // A request has no payload, and is no framed message.
    COHORT_ASSIGN_OR_RETURN(FrameParts parts, SplitFrame(message));
    v1::PullRequest request;
    if (!request.ParseFromArray(parts.header.data(),
                                static_cast<int>(parts.header.size()))) {
      return absl::InvalidArgumentError(absl::StrCat(
          "got ", message.Length(), " bytes that are no PullRequest"));
    }
    COHORT_RETURN_IF_ERROR(TakeMessageChecksum(&request));
    if (!request.run_id().empty() && request.run_id() != shard_.run_id()) {
      return absl::FailedPreconditionError(
          absl::StrCat("got run ", request.run_id(), ", want ", shard_.run_id(),
                       ": this server holds another run"));
    }
    std::optional<Version> version;
    if (request.has_version()) version = Version(request.version());
    COHORT_ASSIGN_OR_RETURN(snapshot_, shard_.Read(version));
    const SharedModel model = shard_.model();

    v1::PullReply reply;
    v1::PullHeader* header = reply.mutable_header();
    header->set_version(snapshot_->version.value());
    ToProto(model->layout, header->mutable_layout());
    ToProto(model->partitions, header->mutable_partitions());
    if (request.statistics()) {
      COHORT_ASSIGN_OR_RETURN(const StatisticsSet* set,
                              SetOf(*snapshot_, request.statistics_kind()));
      ToProto(set->layers, header->mutable_statistics());
    }
    if (request.weights()) weights_end_ = snapshot_->weights.size();
    AddMessageChecksum(&reply);
    Send(EncodeFramed(reply, ByteRope()));
    return absl::OkStatus();
  }

  Shard& shard_;

  // Fixed before the first write; then used by its reactions only.
  SharedSnapshot snapshot_;
  size_t next_ = 0;
  size_t weights_end_ = 0;
};

}  // namespace

ByteWriteReactor* StartPull(Shard& shard, const grpc::ByteBuffer& request) {
  const auto stream = std::make_shared<PullReactor>(shard);
  stream->Start(request);
  return stream.get();
}

}  // namespace cohort
