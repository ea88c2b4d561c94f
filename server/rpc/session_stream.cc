#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "cohort/v1/membership.pb.h"
#include "common/departure.h"
#include "common/local/boot_id.h"
#include "common/printable.h"
#include "common/status_macros.h"
#include "common/step_phase.h"
#include "common/wire/convert.h"
#include "common/wire/message_bytes.h"
#include "common/wire/message_checksum.h"
#include "server/rpc/sender_check.h"
#include "server/rpc/services.h"
#include "server/rpc/worker_stream.h"

namespace cohort {
namespace {

// Texts sent by strangers are shown and logged, so their length is limited.
constexpr size_t kTextLengthMax = 1024;

absl::StatusOr<JoinRequest> JoinFrom(const v1::Join& proto) {
  if (proto.has_rank() && proto.rank() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("join.rank: got ", proto.rank(), ", want 0 or more"));
  }
  if (proto.incarnation() < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "join.incarnation: got ", proto.incarnation(), ", want 0 or more"));
  }
  if (proto.fingerprint().size() > kTextLengthMax ||
      proto.description().size() > kTextLengthMax ||
      proto.build().size() > kTextLengthMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "join: got a fingerprint of ", proto.fingerprint().size(),
        ", a description of ", proto.description().size(), " and a build of ",
        proto.build().size(), " bytes, want at most ", kTextLengthMax));
  }
  JoinRequest request{.run_id = proto.run_id(),
                      .incarnation = Incarnation(proto.incarnation()),
                      .batch_size = proto.batch_size(),
                      .batch_size_max = proto.batch_size_max(),
                      .fingerprint = Printable(proto.fingerprint()),
                      .description = Printable(proto.description()),
                      .build = Printable(proto.build())};
  if (proto.has_rank()) request.rank = Rank(proto.rank());
  return request;
}

absl::Status CheckReported(absl::string_view field, double value) {
  if (std::isfinite(value) && value >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("heartbeat.", field, ": got ", value,
                   ", want a finite number of at least 0"));
}

// Only known names are accepted, because they come from strangers and are shown
// to people.
absl::StatusOr<WorkerReport> ReportFrom(const v1::Heartbeat& heartbeat) {
  WorkerReport report;
  for (const auto& [name, seconds] : heartbeat.phase_seconds()) {
    const auto known = std::find(kStepPhaseNames.begin(), kStepPhaseNames.end(),
                                 absl::string_view(name));
    // Another client may name phases that the page does not show.
    if (known == kStepPhaseNames.end()) continue;
    COHORT_RETURN_IF_ERROR(
        CheckReported(absl::StrCat("phase_seconds.", name), seconds));
    report.phases[name] = seconds;
  }
  if (heartbeat.has_cpu_cores()) {
    COHORT_RETURN_IF_ERROR(CheckReported("cpu_cores", heartbeat.cpu_cores()));
    report.cpu_cores = heartbeat.cpu_cores();
  }
  if (heartbeat.has_resident_bytes()) {
    COHORT_RETURN_IF_ERROR(CheckReported(
        "resident_bytes", static_cast<double>(heartbeat.resident_bytes())));
    report.resident_bytes = heartbeat.resident_bytes();
  }
  for (const absl::string_view name : kTransportNames) {
    if (heartbeat.transport() == name) report.transport = std::string(name);
  }
  return report;
}

// The session of one worker process, from its join to its leave. If it ends
// without a leave, the rank reconnects (RunHost::SessionBroken). Threads as in
// WorkerStream: messages one at a time, answers from any thread.
class SessionReactor final : public WorkerStream<SessionStream> {
 public:
  // `local`, which may be null, must outlive the stream.
  SessionReactor(PartitionsHost& host, RunHost* run, LocalDoor* local)
      : WorkerStream(host, run), local_(local) {}

  void SendJoined(const effect::Joined& joined) override {
    const CoordinatorOptions options = run_->options();
    const RunFacts facts = run_->facts();
    v1::SessionReply reply;
    v1::JoinReply* to = reply.mutable_joined();
    to->set_rank(joined.rank.value());
    to->set_run_id(options.run_id);
    to->set_incarnation(joined.incarnation.value());
    to->set_seed(options.seed);
    to->set_version(joined.version.value());
    to->set_workers(options.workers);
    to->set_heartbeat_interval_ms(std::max<int64_t>(
        1, absl::ToInt64Milliseconds(facts.heartbeat_interval)));
    to->set_lease_ms(absl::ToInt64Milliseconds(options.lease));
    to->add_shards(facts.address);
    // After the end no worker needs the data shards, and they may be gone.
    if (!facts.ended) {
      for (const std::string& address : facts.data_addresses) {
        to->add_shards(address);
      }
    }
    to->set_policy(PolicyText(options.policy));
    to->set_run_name(options.run_name);
    to->set_global_batch(options.policy.global_batch);
    AddOffer(joined, to);
    SendMessage(reply);
  }

  void SendAssignment(const Assignment& assignment) override {
    v1::SessionReply reply;
    ToProto(assignment, reply.mutable_assignment());
    SendMessage(reply);
  }

  void SendStepAborted(const effect::StepAborted& aborted) override {
    v1::SessionReply reply;
    v1::StepAborted* to = reply.mutable_step_aborted();
    to->set_step(aborted.step.value());
    to->set_attempt(aborted.attempt.value());
    for (Rank rank : aborted.members) to->add_members(rank.value());
    to->set_reason(aborted.reason);
    SendMessage(reply);
  }

 protected:
  absl::Status Admit() override {
    COHORT_ASSIGN_OR_RETURN(id_, run_->AdmitSession(SharedFrom(this)));
    return absl::OkStatus();
  }

  absl::Status OnMessage(const grpc::ByteBuffer& message) override {
    COHORT_ASSIGN_OR_RETURN(v1::SessionRequest request,
                            DecodeMessage<v1::SessionRequest>(message));
    COHORT_RETURN_IF_ERROR(TakeMessageChecksum(&request));
    switch (request.message_case()) {
      case v1::SessionRequest::kJoin:
        return OnJoin(request.join());
      case v1::SessionRequest::kHeartbeat:
        if (!joined_) return NotJoined("a heartbeat");
        return OnHeartbeat(request.heartbeat());
      case v1::SessionRequest::kLeave:
        if (!joined_) return NotJoined("a leave");
        left_ = true;
        run_->Leave(id_, DecodeDeparture(request.leave()));
        End(absl::OkStatus());
        return absl::OkStatus();
      case v1::SessionRequest::MESSAGE_NOT_SET:
        break;
    }
    return absl::InvalidArgumentError("session: got an empty message");
  }

  absl::Status OnHalfClose() override {
    return joined_ ? absl::OkStatus() : NotJoined("the end of the stream");
  }

  void OnGone() override {
    if (!joined_ || left_) return;
    run_->SessionBroken(id_);
  }

 private:
  // A worker of this host may share memory in place of TCP.
  void AddOffer(const effect::Joined& joined, v1::JoinReply* to) {
    if (local_ == nullptr) return;
    const LocalDoor::Offer offer =
        local_->Invite(joined.rank, joined.incarnation);
    to->mutable_local()->set_boot_id(BootId());
    to->mutable_local()->set_socket(offer.socket);
    to->mutable_local()->set_token(offer.token);
  }

  static Departure DecodeDeparture(const v1::Leave& leave) {
    return {.reason = Printable(leave.reason().substr(0, kTextLengthMax)),
            .kind = leave.refused()      ? Departure::Kind::kRefused
                    : leave.data_ended() ? Departure::Kind::kDataEnded
                                         : Departure::Kind::kLeaves};
  }

  static absl::Status NotJoined(absl::string_view seen) {
    return absl::InvalidArgumentError(
        absl::StrCat("session: got ", seen, " first, want a join"));
  }

  absl::Status OnJoin(const v1::Join& join) {
    if (joined_) {
      return absl::InvalidArgumentError("session: got a second join");
    }
    COHORT_ASSIGN_OR_RETURN(JoinRequest request, JoinFrom(join));
    COHORT_RETURN_IF_ERROR(BindRank(request));
    COHORT_RETURN_IF_ERROR(run_->Join(id_, request));
    joined_ = true;
    return absl::OkStatus();
  }

  // A client whose certificate is for one rank joins as that one.
  absl::Status BindRank(JoinRequest& request) const {
    if (!caller().rank.has_value()) return absl::OkStatus();
    request.permitted_rank = Rank(*caller().rank);
    if (!request.rank.has_value()) request.rank = request.permitted_rank;
    return CheckRank(caller(), *request.rank);
  }

  absl::Status OnHeartbeat(const v1::Heartbeat& heartbeat) {
    COHORT_ASSIGN_OR_RETURN(const WorkerReport report, ReportFrom(heartbeat));
    run_->Heartbeat(id_, report);
    if (heartbeat.sent_unix_us() == 0) return absl::OkStatus();
    v1::SessionReply reply;
    v1::HeartbeatEcho* echo = reply.mutable_heartbeat_echo();
    echo->set_sent_unix_us(heartbeat.sent_unix_us());
    echo->set_server_unix_us(absl::ToUnixMicros(absl::Now()));
    SendMessage(reply);
    return absl::OkStatus();
  }

  LocalDoor* const local_;
  SessionId id_;

  // Used by the reading side, then by OnGone.
  bool joined_ = false;
  bool left_ = false;
};

}  // namespace

ByteBidiReactor* StartSession(RunHost& run, const StreamCall& call,
                              LocalDoor* local) {
  return Started<SessionReactor>(run.partitions(), &run, call, local);
}

}  // namespace cohort
