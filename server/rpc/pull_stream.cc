#include <grpcpp/grpcpp.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cohort/v1/parameters.pb.h"
#include "common/run_id_check.h"
#include "common/status_macros.h"
#include "common/wire/convert.h"
#include "common/wire/framed_message.h"
#include "common/wire/message_bytes.h"
#include "common/wire/message_checksum.h"
#include "server/rpc/pull_sender.h"
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

class PullReactor final : public PullSender {
 public:
  explicit PullReactor(Shard& shard)
      : PullSender(shard.streams(), shard.pulls(), shard.counters(),
                   shard.clock()),
        shard_(shard) {}

  void Start(grpc::CallbackServerContext* context,
             const grpc::ByteBuffer& request) {
    const bool admitted = Begin(
        context, [&] { return Prepare(ConnectionOf(*context), request); });
    ServiceCounters& counters = shard_.counters();
    ServiceCounters::Add(admitted ? counters.pulls : counters.pulls_refused);
  }

 private:
  // Queues the header.
  absl::Status Prepare(const std::string& peer,
                       const grpc::ByteBuffer& message) {
    COHORT_RETURN_IF_ERROR(
        shard_.AdmitStream(shared_from_this(), /*speaks=*/false));
    COHORT_ASSIGN_OR_RETURN(v1::PullRequest request,
                            DecodeMessage<v1::PullRequest>(message));
    COHORT_RETURN_IF_ERROR(TakeMessageChecksum(&request));
    COHORT_RETURN_IF_ERROR(CheckRunId(request.run_id(), shard_.run_id()));
    if (request.has_shard()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "got a call for data shard ", request.shard(),
          ", but this is the server that coordinates the run; the addresses "
          "lead to different processes from here and from there"));
    }
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
    if (shard_.shards() > 1) {
      for (const std::string& address : shard_.data_addresses()) {
        header->add_further_shards(address);
      }
      header->set_generation(shard_.generation());
      held_ = snapshot;
    }
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

  Shard& shard_;
  // With several shards: makes the others hold the version meanwhile.
  SharedSnapshot held_;
};

}  // namespace

ByteWriteReactor* StartPull(Shard& shard, grpc::CallbackServerContext* context,
                            const grpc::ByteBuffer& request) {
  const auto stream = std::make_shared<PullReactor>(shard);
  stream->Start(context, request);
  return stream.get();
}

}  // namespace cohort
