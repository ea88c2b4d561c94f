#include <grpcpp/grpcpp.h>

#include <memory>
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

// Sends a version, or the partitions of one that a data shard owns.
class PullReactor final : public PullSender {
 public:
  // `run` is null at a data shard. Both must outlive the stream.
  PullReactor(PartitionsHost& host, RunHost* run)
      : PullSender(host.streams(), host.pulls(), host.counters(), host.clock()),
        host_(host),
        run_(run) {}

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

 private:
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
    COHORT_RETURN_IF_ERROR(TakePlace(connection_, snapshot.version));
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
  // meanwhile, and which of its statistics are meant.
  SharedVersion held_;
  const StatisticsSet* set_ = nullptr;
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
