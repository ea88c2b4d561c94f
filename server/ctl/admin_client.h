#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cohort/v1/admin.pb.h"
#include "server/ctl/server_target.h"

namespace cohort {

// The next step in the error of a Cohort server that has no Admin service, and
// says who has.
inline constexpr char kPassThatAddress[] = "Pass that address as --server";

// The Admin service of one server, one call a method. Connects on first use.
//
// Errors of every method: those of the rpc, with the server's message;
//   InvalidArgument: a file of the target cannot be used; Unauthenticated and
//   PermissionDenied: the server does not know the client, or denies the call;
//   Unavailable if the server cannot be reached or does not answer within the
//   timeout (the message says what to check); Unimplemented by an older server.
// Retry: safe, like the rpcs. A call is repeated for half a second if the
// server cannot be reached, or stops during it: one with data shards is back
// soon. Thread safety: none.
class AdminClient {
 public:
  // `timeout` applies to each call, and does not include SetPolicyRequest's
  // wait. Errors of the target's files come with each
  // call.
  AdminClient(ServerTarget target, absl::Duration timeout);
  ~AdminClient();

  const std::string& server() const { return target_.server; }
  const ServerTarget& target() const { return target_; }

  absl::StatusOr<v1::Status> GetStatus();
  absl::StatusOr<v1::GetPolicyReply> GetPolicy();
  absl::StatusOr<v1::SetPolicyReply> SetPolicy(v1::SetPolicyRequest request);
  absl::StatusOr<v1::EvictReply> Evict(v1::EvictRequest request);
  absl::StatusOr<v1::DrainReply> Drain(const v1::DrainRequest& request);
  absl::StatusOr<v1::CheckpointReply> Checkpoint();
  absl::StatusOr<v1::ExportReply> Export();
  absl::StatusOr<v1::CollectStatisticsReply> CollectStatistics();
  absl::StatusOr<v1::SetLogLevelReply> SetLogLevel(
      const v1::SetLogLevelRequest& request);

 private:
  struct Connection;

  template <typename Reply, typename Request, typename Method>
  absl::StatusOr<Reply> Call(Method method, const Request& request);
  template <typename Reply, typename Request, typename Method>
  absl::Status CallOnce(Method method, const Request& request, Reply& reply);

  const ServerTarget target_;
  const absl::Duration timeout_;
  const std::unique_ptr<Connection> connection_;
};

}  // namespace cohort
