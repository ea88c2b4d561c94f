#include "server/ctl/admin_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cohort/v1/admin.grpc.pb.h"
#include "common/listen_address.h"
#include "common/ops/closed_connection.h"
#include "common/status_macros.h"
#include "common/wire/announced_checksum.h"
#include "common/wire/channel.h"
#include "common/wire/security.h"
#include "common/wire/status.h"

namespace cohort {
namespace {

// gRPC's clocks overflow on longer timeouts.
constexpr absl::Duration kTimeoutMax = absl::Hours(24);
// After the loss of a data shard, the server takes no calls for a moment.
constexpr absl::Duration kAbsenceMax = absl::Milliseconds(500);
constexpr absl::Duration kRetryPause = absl::Milliseconds(50);
// Limit on finding out why a server ended a connection.
constexpr absl::Duration kProbeMax = absl::Seconds(2);

std::chrono::system_clock::time_point DeadlineIn(absl::Duration timeout) {
  return std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout);
}

// The error if certificates, or their absence, are why the server cannot be
// reached; OK otherwise.
absl::Status TlsProblem(const ServerTarget& target, absl::Duration timeout,
                        absl::string_view message) {
  if (const auto failure = HandshakeFailure(message)) {
    return absl::UnavailableError(absl::StrCat(
        target.server, ": no connection: ", *failure,
        "\n`cohortctl certs show FILE` prints whose a certificate is, who "
        "issued it and when it expires"));
  }
  if (!IsClosedEarly(message)) return absl::OkStatus();
  const ClosedBecause cause =
      WhyClosed(target.server, target.tls, std::min(timeout, kProbeMax));
  if (cause == ClosedBecause::kUnknown) return absl::OkStatus();
  const std::string text =
      absl::StrCat(target.server, ": no connection: ", Text(cause));
  return cause == ClosedBecause::kServerSpeaksTls
             ? absl::UnavailableError(text)
             : absl::UnauthenticatedError(text);
}

// Replaces gRPC's error text by one that people can act on.
absl::Status Explained(const ServerTarget& target, absl::Duration timeout,
                       const absl::Status& status) {
  const std::string& server = target.server;
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      COHORT_RETURN_IF_ERROR(TlsProblem(target, timeout, status.message()));
      return absl::UnavailableError(absl::StrCat(
          server, ": cannot be reached (",
          ConnectionFailure(status.message())
              .value_or(std::string(status.message())),
          ")\nIs cohort-server running there? It prints the address that it "
          "listens on when it starts; pass it as --server"));
    case absl::StatusCode::kDeadlineExceeded:
      return absl::UnavailableError(absl::StrCat(
          server, ": no answer within ", absl::FormatDuration(timeout),
          "\nIs it a Cohort server, and is the way to it open? Try again "
          "with a longer --timeout"));
    case absl::StatusCode::kUnimplemented:
      if (absl::StrContains(status.message(), "--admin_listen") ||
          absl::StrContains(status.message(), "--data_shard")) {
        return absl::UnimplementedError(absl::StrCat(
            server, ": ", status.message(), "\n", kPassThatAddress));
      }
      return absl::UnimplementedError(absl::StrCat(
          server,
          ": does not know this request: it is a server of another release, or "
          "none of Cohort's\nCheck --server, or use the cohortctl of that "
          "release"));
    case absl::StatusCode::kCancelled:
      return absl::UnavailableError(absl::StrCat(
          server,
          ": the server stopped during the request, which may or may "
          "not have been done\n`cohortctl status` tells once it is "
          "back"));
    default:
      return status;
  }
}

}  // namespace

struct AdminClient::Connection {
  // An error if the target cannot be used.
  absl::Status usable;
  // "Bearer TOKEN"; empty without a token.
  std::string authorization;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Admin::Stub> stub;

  absl::Status Open(const ServerTarget& target) {
    COHORT_RETURN_IF_ERROR(CheckServerAddress("--server", target.server));
    COHORT_ASSIGN_OR_RETURN(const SharedSecurity security,
                            Security::Load(target.tls));
    COHORT_ASSIGN_OR_RETURN(const std::string token, TokenOf(target));
    if (!token.empty()) authorization = absl::StrCat("Bearer ", token);
    channel = MakeChannel(target.server, ChannelPurpose::kControl, security);
    stub = v1::Admin::NewStub(channel);
    return absl::OkStatus();
  }
};

AdminClient::AdminClient(ServerTarget target, absl::Duration timeout)
    : target_(std::move(target)),
      timeout_(std::min(timeout, kTimeoutMax)),
      connection_(std::make_unique<Connection>()) {
  connection_->usable = connection_->Open(target_);
}

AdminClient::~AdminClient() = default;

template <typename Reply, typename Request, typename Method>
absl::StatusOr<Reply> AdminClient::Call(Method method, const Request& request) {
  COHORT_RETURN_IF_ERROR(connection_->usable);
  const auto until = DeadlineIn(std::min(timeout_, kAbsenceMax));
  for (;;) {
    Reply reply;
    const absl::Status status = CallOnce(method, request, reply);
    if (status.ok()) return reply;
    const bool may_return = absl::IsCancelled(status) ||
                            (absl::IsUnavailable(status) &&
                             !HandshakeFailure(status.message()).has_value());
    if (!may_return || std::chrono::system_clock::now() >= until) {
      return Explained(target_, timeout_, status);
    }
    // The connection may not know yet that it is over.
    grpc::Channel& channel = *connection_->channel;
    channel.WaitForStateChange(channel.GetState(/*try_to_connect=*/true),
                               DeadlineIn(kRetryPause));
    channel.WaitForConnected(until);
  }
}

template <typename Reply, typename Request, typename Method>
absl::Status AdminClient::CallOnce(Method method, const Request& request,
                                   Reply& reply) {
  grpc::ClientContext context;
  if (!connection_->authorization.empty()) {
    context.AddMetadata("authorization", connection_->authorization);
  }
  if constexpr (requires { request.has_message_xxh3(); }) {
    if (request.has_message_xxh3())
      context.AddMetadata(kChecksumAnnounced, "1");
  }
  absl::Duration timeout = timeout_;
  if constexpr (requires { request.wait_ms(); }) {
    timeout += absl::Milliseconds(request.wait_ms());
  }
  context.set_deadline(DeadlineIn(timeout));
  return FromGrpcStatus(
      ((*connection_->stub).*method)(&context, request, &reply));
}

absl::StatusOr<v1::Status> AdminClient::GetStatus() {
  return Call<v1::Status>(&v1::Admin::Stub::GetStatus, v1::GetStatusRequest());
}

absl::StatusOr<v1::GetPolicyReply> AdminClient::GetPolicy() {
  return Call<v1::GetPolicyReply>(&v1::Admin::Stub::GetPolicy,
                                  v1::GetPolicyRequest());
}

// Where one flipped bit would be another valid request, which a network may
// deliver, the request has a checksum.
absl::StatusOr<v1::SetPolicyReply> AdminClient::SetPolicy(
    v1::SetPolicyRequest request) {
  AddMessageChecksum(&request);
  return Call<v1::SetPolicyReply>(&v1::Admin::Stub::SetPolicy, request);
}

absl::StatusOr<v1::EvictReply> AdminClient::Evict(v1::EvictRequest request) {
  AddMessageChecksum(&request);
  return Call<v1::EvictReply>(&v1::Admin::Stub::Evict, request);
}

absl::StatusOr<v1::DrainReply> AdminClient::Drain(
    const v1::DrainRequest& request) {
  return Call<v1::DrainReply>(&v1::Admin::Stub::Drain, request);
}

absl::StatusOr<v1::CheckpointReply> AdminClient::Checkpoint() {
  return Call<v1::CheckpointReply>(&v1::Admin::Stub::Checkpoint,
                                   v1::CheckpointRequest());
}

absl::StatusOr<v1::CollectStatisticsReply> AdminClient::CollectStatistics() {
  return Call<v1::CollectStatisticsReply>(&v1::Admin::Stub::CollectStatistics,
                                          v1::CollectStatisticsRequest());
}

absl::StatusOr<v1::SetLogLevelReply> AdminClient::SetLogLevel(
    const v1::SetLogLevelRequest& request) {
  return Call<v1::SetLogLevelReply>(&v1::Admin::Stub::SetLogLevel, request);
}

absl::StatusOr<v1::ExportReply> AdminClient::Export() {
  return Call<v1::ExportReply>(&v1::Admin::Stub::Export, v1::ExportRequest());
}

}  // namespace cohort
