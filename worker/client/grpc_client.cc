#include "worker/client/grpc_client.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/listen_address.h"
#include "common/run_id_check.h"
#include "common/status_macros.h"
#include "common/wire/channel.h"
#include "common/wire/convert.h"
#include "common/wire/security.h"
#include "worker/client/local_path.h"
#include "worker/client/unary_call.h"

namespace cohort {
namespace {

// Shorter than the limit for a server that is away: a server that accepts the
// connection but does not answer may be another program at its address.
constexpr absl::Duration kJoinAttempt = absl::Seconds(10);
// Time between two looks at a server that ends each connection, and the limit
// on one.
constexpr absl::Duration kLookInterval = absl::Seconds(30);
constexpr absl::Duration kLookMax = absl::Seconds(2);
// Time between two looks for a state that another worker has to send.
constexpr absl::Duration kStatePoll = absl::Milliseconds(20);
// Time for the server to process the good-bye.
constexpr absl::Duration kLeavePatience = absl::Seconds(2);

absl::StatusOr<Membership> MembershipFromProto(const v1::JoinReply& proto) {
  v1::Sender identity;
  identity.set_run_id(proto.run_id());
  identity.set_rank(proto.rank());
  identity.set_incarnation(proto.incarnation());
  COHORT_ASSIGN_OR_RETURN(const Sender sender, FromProto(identity));
  if (proto.heartbeat_interval_ms() <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("heartbeat_interval_ms: got ",
                     proto.heartbeat_interval_ms(), ", want above 0"));
  }
  for (int i = 1; i < proto.shards_size(); ++i) {
    COHORT_RETURN_IF_ERROR(CheckServerAddress("shards", proto.shards(i)));
  }
  return Membership{.rank = sender.rank,
                    .run_id = sender.run_id,
                    .incarnation = sender.incarnation,
                    .seed = proto.seed(),
                    .version = Version(proto.version()),
                    .workers = proto.workers(),
                    .global_batch = proto.global_batch(),
                    .policy = proto.policy(),
                    .run_name = proto.run_name()};
}

absl::Status CheckValues(const ModelLayout& layout,
                         absl::Span<const absl::Span<const float>> values) {
  if (values.size() != layout.parameters.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("got values of ", values.size(), " parameters, want ",
                     layout.parameters.size()));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t wanted = ElementCount(layout.parameters[i]);
    if (static_cast<int64_t>(values[i].size()) != wanted) {
      return absl::InvalidArgumentError(
          absl::StrCat(layout.parameters[i].name, ": got ", values[i].size(),
                       " elements, want ", wanted));
    }
  }
  return absl::OkStatus();
}

}  // namespace

GrpcClient::GrpcClient(const ClientOptions& options, SharedSecurity security)
    : options_(options),
      security_(std::move(security)),
      control_(
          MakeChannel(options.server, ChannelPurpose::kControl, security_)),
      membership_stub_(v1::Membership::NewStub(control_)),
      link_(options.server, clock_),
      shards_(security_) {}

GrpcClient::~GrpcClient() { Disconnect(); }

absl::StatusOr<Membership> GrpcClient::Join() {
  if (left_) return Usable();
  const bool again = membership_.has_value();
  Disconnect();
  COHORT_RETURN_IF_ERROR(link_.Check());
  const Instant now = clock_.Now();
  if (!joining_since_.has_value() ||
      now >= *joining_since_ + options_.server_timeout) {
    joining_since_ = now;
  }
  const absl::Status status =
      Explained(TryConnect(*joining_since_ + options_.server_timeout));
  if (absl::IsCancelled(status)) return status;
  if (IsReconnectable(status)) {
    // This incarnation is over, or the server does not know it.
    if (absl::IsAborted(status)) return_to_ = Incarnation();
    return status;
  }
  joining_since_.reset();
  if (status.ok()) {
    if (options_.hooks != nullptr) {
      options_.hooks->OnJoined(*membership_, again);
    }
    return *membership_;
  }
  Disconnect();
  if (absl::IsOutOfRange(status)) {
    // The run continues with fewer workers. This is no error, and there is
    // nothing to do.
    Observe(std::string(status.message()));
    return final_ = absl::CancelledError(status.message());
  }
  return final_ = status;
}

absl::StatusOr<Registration> GrpcClient::Register(
    const ModelLayout& layout, const RunPlan& plan,
    absl::Span<const absl::Span<const float>> values,
    absl::Span<const LayerStatistics> statistics) {
  COHORT_RETURN_IF_ERROR(Validate(layout));
  COHORT_RETURN_IF_ERROR(CheckValues(layout, values));
  COHORT_RETURN_IF_ERROR(Usable());
  COHORT_ASSIGN_OR_RETURN(
      Registration registration,
      RegisterModel(MakeTarget(Patience()), {.layout = layout,
                                             .plan = plan,
                                             .values = values,
                                             .statistics = statistics,
                                             .on_wait = WaitTeller()}));
  registered_ = {.layout = layout,
                 .plan = plan,
                 .registration = registration,
                 .incarnation = membership_->incarnation};
  return registration;
}

Incarnation GrpcClient::incarnation() const {
  return membership_.has_value() ? membership_->incarnation : Incarnation();
}

absl::StatusOr<Assignment> GrpcClient::NextAssignment() {
  Instant give_up = Patience();
  std::string awaited = "waiting for an assignment";
  for (;;) {
    absl::StatusOr<Assignment> notice = AwaitNotice(give_up);
    if (notice.ok() && notice->kind != AssignmentKind::kWait) {
      if (notice->attempt.value() > 0) {
        Observe(absl::StrCat("repeating step ", notice->version.value(),
                             ", attempt ", notice->attempt.value()));
      }
      if (notice->kind == AssignmentKind::kFinished) Observe(notice->reason);
      current_ = *notice;
      updates_ = 0;
      return notice;
    }
    if (notice.ok()) {
      awaited = notice->reason;
      Observe(awaited);
      give_up = Patience() + notice->wait;
      continue;
    }
    if (absl::IsDeadlineExceeded(notice.status())) {
      return absl::DeadlineExceededError(
          absl::StrCat(options_.server, ": received nothing while ", awaited));
    }
    return notice.status();
  }
}

absl::StatusOr<PulledVersion> GrpcClient::Pull(const PullOptions& options) {
  COHORT_RETURN_IF_ERROR(Usable());
  absl::StatusOr<PulledVersion> pulled =
      PullVersion(MakeTarget(Patience()), options);
  if (absl::IsUnavailable(pulled.status())) link_.Break(pulled.status());
  if (pulled.ok() && KeepsWeights()) {
    kept_.Take(*pulled, options, membership_->incarnation);
  }
  return pulled;
}

absl::StatusOr<std::vector<Moments>> GrpcClient::Reduce(
    const ReducePass& pass, absl::Span<const Contribution> local) {
  for (const Contribution& call : local) {
    const Moments& moments = call.moments;
    if (moments.first.size() == moments.second.size()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("moments: got ", moments.second.size(), " channels, want ",
                     moments.first.size()));
  }
  COHORT_RETURN_IF_ERROR(Usable());
  if (connection_->reduce == nullptr) {
    COHORT_RETURN_IF_ERROR(ConnectLocally());
    connection_->reduce = std::make_unique<ReduceClient>(
        moments_, link_,
        ReduceClient::Options{.sender = connection_->sender,
                              .local = connection_->local.get()});
  }
  return connection_->reduce->Reduce(pass, local);
}

absl::Status GrpcClient::OpenPush(const PushOpening& opening) {
  COHORT_ASSIGN_OR_RETURN(PushStream * push, OpenedPushStream());
  KeptWeights::Shared base;
  // Several updates are no change of the version that is kept.
  if (updates_ == 0 && !opening.continues) {
    base = kept_.Find(opening.version, membership_->incarnation);
  }
  // From now on only weights that the push has read are kept.
  if (base == nullptr) kept_.Forget();
  PushOpening with_base = opening;
  with_base.takes_changes = base != nullptr;
  return push->Open({.sequence = current_->sequence,
                     .attempt = current_->attempt,
                     .update = updates_},
                    with_base, current_->gradients, std::move(base));
}

bool GrpcClient::KeepsWeights() const {
  // Weights in shared memory cost no transfer.
  return current_.has_value() && !current_->members.empty() &&
         current_->gradients == ElementType::kBFloat16 &&
         connection_ != nullptr && connection_->local == nullptr;
}

absl::Status GrpcClient::SendGradient(int32_t partition, ByteRope gradient,
                                      absl::Span<const int32_t> absent_slices) {
  COHORT_ASSIGN_OR_RETURN(PushStream * push, OpenedPushStream());
  return push->SendGradient(partition, gradient, absent_slices);
}

absl::StatusOr<std::vector<ByteRope>> GrpcClient::AwaitUpdate() {
  COHORT_ASSIGN_OR_RETURN(PushStream * push, OpenedPushStream());
  COHORT_ASSIGN_OR_RETURN(std::vector<ByteRope> weights, push->AwaitUpdate());
  ++updates_;
  return weights;
}

absl::StatusOr<PushResult> GrpcClient::ClosePush(const PushClosing& closing) {
  COHORT_ASSIGN_OR_RETURN(PushStream * push, OpenedPushStream());
  absl::StatusOr<PushResult> result = push->Close(closing);
  if (!KeepsWeights()) {
    kept_.Forget();
  } else if (result.ok()) {
    kept_.Follow(*result, registered_->registration.partitions,
                 membership_->incarnation);
  }
  return result;
}

absl::StatusOr<PushVerdict> GrpcClient::RepeatClosing(
    const PushKey& key, const PushClosing& closing) {
  COHORT_ASSIGN_OR_RETURN(PushStream * push, OpenedPushStream());
  return push->RepeatClosing(key, closing);
}

StateCalls GrpcClient::MakeStateCalls() {
  return {.channel = bulk_,
          .link = link_,
          .sender = connection_->sender,
          .deadline = Patience()};
}

template <typename Result>
Result GrpcClient::NoteStateCall(Result end) {
  const absl::Status& status = [&]() -> const absl::Status& {
    if constexpr (std::is_same_v<Result, absl::Status>) {
      return end;
    } else {
      return end.status();
    }
  }();
  if (IsReconnectable(status)) link_.Break(status);
  return end;
}

absl::StatusOr<bool> GrpcClient::HoldState(const StateHolding& holding) {
  COHORT_RETURN_IF_ERROR(Usable());
  return NoteStateCall(MakeStateCalls().Hold(holding));
}

absl::Status GrpcClient::GiveState(Version version, absl::string_view bytes) {
  COHORT_RETURN_IF_ERROR(Usable());
  return NoteStateCall(MakeStateCalls().Give(version, bytes));
}

absl::StatusOr<TakenState> GrpcClient::TakeState() {
  for (;;) {
    COHORT_RETURN_IF_ERROR(Usable());
    if (!current_.has_value() || current_->kind != AssignmentKind::kTrain) {
      return absl::FailedPreconditionError("there is no training assignment");
    }
    {
      MutexLock lock(link_.mu);
      COHORT_RETURN_IF_ERROR(link_.tracker.CheckTaken());
    }
    COHORT_ASSIGN_OR_RETURN(std::optional<TakenState> taken,
                            NoteStateCall(MakeStateCalls().Take(*current_)));
    if (taken.has_value() && taken->over) {
      return absl::AbortedError("a later step has begun");
    }
    if (taken.has_value()) return *std::move(taken);
    COHORT_RETURN_IF_ERROR(link_.Pause(kStatePoll));
  }
}

absl::Status GrpcClient::ReportEvaluation(const EvaluationSums& sums) {
  v1::ReportRequest request;
  ToProto(sums, &request);
  return Report(AssignmentKind::kEvaluate, request);
}

absl::Status GrpcClient::ReportMoments(absl::Span<const CallMoments> calls) {
  v1::ReportRequest request;
  ToProto(calls, request.mutable_collected());
  return Report(AssignmentKind::kCollectMoments, request);
}

absl::Status GrpcClient::Report(AssignmentKind kind,
                                v1::ReportRequest& request) {
  COHORT_RETURN_IF_ERROR(Usable());
  if (!current_.has_value() || current_->kind != kind) {
    return absl::FailedPreconditionError(absl::StrCat(
        "there is no ",
        kind == AssignmentKind::kEvaluate ? "evaluation" : "collection",
        " to report"));
  }
  ToProto(connection_->sender, request.mutable_sender());
  request.set_sequence(current_->sequence.value());
  absl::StatusOr<v1::ReportReply> reply =
      CallUnary(link_, "the report", Patience(), membership_stub_->async(),
                &v1::Membership::Stub::async::Report, request);
  if (!reply.ok()) {
    if (IsReconnectable(reply.status())) {
      link_.Break(reply.status());
    }
    return reply.status();
  }
  COHORT_ASSIGN_OR_RETURN(const Assignment next, FromProto(reply->next()));
  MutexLock lock(link_.mu);
  link_.tracker.Offer(next);
  return absl::OkStatus();
}

void GrpcClient::Leave(const Departure& departure) {
  if (connection_ != nullptr) {
    connection_->session->Leave(departure, kLeavePatience);
  }
  Disconnect();
  left_ = true;
}

void GrpcClient::RequestStop() { link_.RequestStop(); }

void GrpcClient::SetObserver(std::function<void(const std::string&)> observer) {
  observer_ = std::move(observer);
}

// A failure of a connection with its cause, if certificates or their absence
// are the cause. One on the server's side remains Unavailable, since it may be
// mended while this worker waits.
absl::Status GrpcClient::Explained(const absl::Status& failure) {
  if (!absl::IsUnavailable(failure)) return failure;
  COHORT_RETURN_IF_ERROR(CheckOwnCertificate());
  if (!IsClosedEarly(failure.message())) return failure;
  const Instant now = clock_.Now();
  // Each look is a further connection, and a line in the server's log.
  if (!looked_at_.has_value() || now - *looked_at_ >= kLookInterval) {
    looked_at_ = now;
    closed_because_ = WhyClosed(options_.server, options_.tls, kLookMax);
  }
  if (closed_because_ == ClosedBecause::kUnknown) return failure;
  return AsObstacle(absl::UnavailableError(absl::StrCat(
      options_.server, ": no connection: ", Text(closed_because_))));
}

// An error if the certificate in use has expired for a while: its files may
// just be being replaced.
absl::Status GrpcClient::CheckOwnCertificate() const {
  const absl::Time end = security_->not_after();
  if (absl::Now() < end + options_.own_certificate_grace)
    return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "--tls_cert: the own certificate has expired at ", absl::FormatTime(end),
      ", and the file holds no valid one; renew it"));
}

absl::Status GrpcClient::TryConnect(Instant deadline) {
  auto connection = std::make_unique<Connection>();
  connection->session = std::make_unique<SessionClient>(
      control_, link_, MakeJoin(), options_.hooks);
  const absl::StatusOr<v1::JoinReply> reply = connection->session->AwaitJoined(
      std::min(deadline, clock_.Now() + kJoinAttempt));
  if (absl::IsDeadlineExceeded(reply.status())) {
    return absl::UnavailableError(
        absl::StrCat(options_.server, ": the server did not answer the join"));
  }
  COHORT_RETURN_IF_ERROR(reply.status());
  COHORT_ASSIGN_OR_RETURN(const Membership membership,
                          MembershipFromProto(*reply));
  COHORT_RETURN_IF_ERROR(CheckSameRun(membership));
  connection->sender = {.run_id = membership.run_id,
                        .rank = membership.rank,
                        .incarnation = membership.incarnation};
  connection->local_offer = reply->local();
  for (int i = 1; i < reply->shards_size(); ++i) {
    connection->data_shards.push_back(reply->shards(i));
  }
  SessionClient* session = connection->session.get();
  // The last incarnation has ended: the server began again, or something was
  // stuck, which may have been a connection: after damage in transit, a frame's
  // length can make it swallow megabytes of replies.
  const bool renewed = membership_.has_value() &&
                       membership_->incarnation != membership.incarnation;
  if (renewed) {
    peer_.clear();
    shards_.Clear();
  }
  // Each connection to a Unix socket ends at the same process, so its path does
  // as well.
  FollowPeer(IsUnixAddress(options_.server) ? options_.server
                                            : session->peer());
  connection->heartbeat = std::make_unique<PeriodicTask>(
      "heartbeat", absl::Milliseconds(reply->heartbeat_interval_ms()),
      [session] { session->Heartbeat(); });
  connection_ = std::move(connection);
  membership_ = membership;
  return_to_ = membership.incarnation;
  // Gradients and weights would wait for a connection for ever.
  COHORT_RETURN_IF_ERROR(shards_.AwaitAll(
      membership.run_id, connection_->data_shards, options_.tls, link_,
      deadline, [this](const std::string& text) {
        Observe(absl::StrCat("waiting: ", text));
      }));
  if (registered_.has_value() &&
      registered_->incarnation != membership.incarnation) {
    return RegisterAgain(deadline);
  }
  return absl::OkStatus();
}

absl::Status GrpcClient::RegisterAgain(Instant deadline) {
  COHORT_ASSIGN_OR_RETURN(
      const Registration registration,
      RegisterModel(MakeTarget(deadline), {.layout = registered_->layout,
                                           .plan = registered_->plan,
                                           .values = std::nullopt,
                                           .statistics = {},
                                           .on_wait = WaitTeller()}));
  // The caller's buffers and losses fit the first answer only.
  if (registration.partitions != registered_->registration.partitions ||
      registration.loss_reference != registered_->registration.loss_reference) {
    return absl::FailedPreconditionError(absl::StrCat(
        options_.server,
        ": partitions or loss reference changed since this worker registered"));
  }
  registered_->incarnation = membership_->incarnation;
  return absl::OkStatus();
}

void GrpcClient::Disconnect() {
  connection_.reset();
  current_.reset();
  link_.Reset();
}

void GrpcClient::FollowPeer(const std::string& peer) {
  if (peer == peer_) return;
  peer_ = peer;
  moments_ = MakeChannel(peer, ChannelPurpose::kMoments, security_);
  bulk_ = MakeChannel(peer, ChannelPurpose::kBulk, security_);
  // Connect before the first use.
  moments_->GetState(/*try_to_connect=*/true);
  bulk_->GetState(/*try_to_connect=*/true);
}

v1::Join GrpcClient::MakeJoin() const {
  v1::Join join;
  const std::optional<Rank> rank =
      membership_.has_value() ? membership_->rank : options_.rank;
  if (rank.has_value()) join.set_rank(rank->value());
  if (membership_.has_value()) join.set_run_id(membership_->run_id);
  join.set_incarnation(return_to_.value());
  join.set_batch_size(options_.batch_size);
  join.set_batch_size_max(options_.batch_size_max);
  join.set_fingerprint(options_.fingerprint);
  join.set_description(options_.description);
  join.set_build(options_.build);
  return join;
}

absl::Status GrpcClient::CheckSameRun(const Membership& membership) const {
  if (!membership_.has_value()) return absl::OkStatus();
  if (membership.run_id != membership_->run_id) {
    return AsRunGone(OtherRunError(membership.run_id, membership_->run_id,
                                   absl::StrCat(options_.server, ": ")));
  }
  if (membership.rank != membership_->rank) {
    return absl::FailedPreconditionError(
        absl::StrCat(options_.server, ": got rank ", membership.rank.value(),
                     ", want ", membership_->rank.value()));
  }
  return absl::OkStatus();
}

absl::Status GrpcClient::Usable() {
  const absl::Status link = link_.Check();
  if (absl::IsCancelled(link)) return link;
  if (left_) return absl::FailedPreconditionError("this worker has left");
  if (!membership_.has_value()) {
    return absl::FailedPreconditionError("call Join first");
  }
  COHORT_RETURN_IF_ERROR(final_);
  COHORT_RETURN_IF_ERROR(link);
  if (connection_ == nullptr) {
    return absl::UnavailableError(
        absl::StrCat(options_.server, ": not connected"));
  }
  return absl::OkStatus();
}

absl::Status GrpcClient::ConnectLocally() {
  if (std::exchange(connection_->tried_locally, true)) return absl::OkStatus();
  if (!registered_.has_value()) {
    return absl::FailedPreconditionError("this worker has not registered");
  }
  absl::StatusOr<LocalPath> path =
      connection_->data_shards.empty()
          ? ChooseLocalPath(options_.local, options_.server,
                            connection_->local_offer,
                            registered_->registration.partitions)
          : PathToShards(options_.local);
  if (!path.ok()) return final_ = path.status();
  connection_->local = std::move(path->memory);
  if (options_.hooks != nullptr && path->text != exchange_path_) {
    options_.hooks->OnExchangePath(path->transport, path->text);
  }
  exchange_path_ = path->text;
  return absl::OkStatus();
}

absl::StatusOr<PushStream*> GrpcClient::OpenedPushStream() {
  COHORT_RETURN_IF_ERROR(Usable());
  if (!registered_.has_value()) {
    return absl::FailedPreconditionError("call Register before a push");
  }
  if (!current_.has_value() || current_->kind != AssignmentKind::kTrain) {
    return absl::FailedPreconditionError("there is no training assignment");
  }
  if (connection_->push == nullptr) {
    COHORT_RETURN_IF_ERROR(ConnectLocally());
    std::vector<ShardChannel> data_shards;
    for (const std::string& address : connection_->data_shards) {
      data_shards.push_back(
          {.address = address, .channel = shards_.To(address)});
    }
    connection_->push = std::make_unique<PushStream>(
        bulk_, link_,
        PushStream::Options{.sender = connection_->sender,
                            .checksums = !options_.tls.encrypted(),
                            .local = connection_->local.get(),
                            .data_shards = std::move(data_shards)},
        registered_->registration.partitions);
  }
  return connection_->push.get();
}

absl::StatusOr<Assignment> GrpcClient::AwaitNotice(Instant deadline) {
  const absl::Status usable = Usable();
  MutexLock lock(link_.mu);
  // A server whose run is over closes its streams; its last notice still
  // applies.
  if (link_.tracker.finished()) return *link_.tracker.Take();
  COHORT_RETURN_IF_ERROR(usable);
  for (;;) {
    std::optional<Assignment> notice = link_.tracker.Take();
    if (!notice.has_value()) notice = link_.tracker.TakeWait();
    if (notice.has_value()) return *std::move(notice);
    COHORT_RETURN_IF_ERROR(link_.WaitLocked(deadline));
  }
}

BulkTarget GrpcClient::MakeTarget(Instant deadline) {
  return {.channel = bulk_,
          .link = &link_,
          .sender = connection_->sender,
          .deadline = deadline,
          .patience = options_.server_timeout,
          .shards = &shards_};
}

std::function<Instant(const Assignment&)> GrpcClient::WaitTeller() {
  return [this](const Assignment& wait) {
    Observe(wait.reason);
    return Patience() + wait.wait;
  };
}

Instant GrpcClient::Patience() const {
  return clock_.Now() + options_.server_timeout;
}

void GrpcClient::Observe(const std::string& sentence) {
  if (observer_) observer_(sentence);
}

}  // namespace cohort
