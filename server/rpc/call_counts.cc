#include "server/rpc/call_counts.h"

#include <grpcpp/server_context.h>

#include <memory>

#include "server/rpc/caller.h"

namespace cohort {
namespace {

std::string ClientOf(const grpc::ServerContextBase& context) {
  const std::shared_ptr<const grpc::AuthContext> connection =
      context.auth_context();
  if (connection == nullptr ||
      connection->GetPeerIdentityPropertyName().empty()) {
    return "";
  }
  return CountedAs(*connection);
}

}  // namespace

CountedCall::CountedCall(CallCounts& counts, absl::string_view method,
                         const grpc::ServerContextBase& context)
    : counts_(counts),
      calls_(counts.metrics.Of(method)),
      begin_(counts.clock.Now()),
      client_(ClientOf(context)) {
  calls_.Started();
  if (!client_.empty()) counts_.open.Opened(client_);
}

CountedCall::~CountedCall() {
  if (!client_.empty()) counts_.open.Closed(client_);
}

}  // namespace cohort
