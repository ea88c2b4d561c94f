#include "server/rpc/caller.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cohort {

namespace {

// The URI in the verified certificate of a connection; empty without one. gRPC
// sets it only for a certificate with one URI.
absl::string_view UriOf(const grpc::AuthContext& connection) {
  const std::vector<grpc::string_ref> uris =
      connection.FindPropertyValues(GRPC_PEER_SPIFFE_ID_PROPERTY_NAME);
  return uris.empty() ? absl::string_view()
                      : absl::string_view(uris[0].data(), uris[0].size());
}

}  // namespace

Presented PresentedBy(const grpc::AuthContext& connection) {
  Presented presented;
  absl::StatusOr<Identity> identity = ParseIdentity(UriOf(connection));
  if (identity.ok()) presented.identity = *std::move(identity);
  return presented;
}

std::string CountedAs(const grpc::AuthContext& connection) {
  // The gate has parsed it already, and this is part of every call.
  const absl::string_view uri = UriOf(connection);
  return uri.empty() ? "all clients with a token together" : std::string(uri);
}

std::string IdentityNameOf(const grpc::ServerContextBase& context) {
  const std::shared_ptr<const grpc::AuthContext> connection =
      context.auth_context();
  if (connection == nullptr ||
      connection->GetPeerIdentityPropertyName().empty()) {
    return "";
  }
  const absl::string_view uri = UriOf(*connection);
  return uri.empty() ? "a token" : std::string(uri);
}

Caller CallerOf(const grpc::ServerContextBase& context) {
  const std::shared_ptr<const grpc::AuthContext> connection =
      context.auth_context();
  if (connection != nullptr) {
    const Presented presented = PresentedBy(*connection);
    if (presented.identity.has_value()) {
      return CallerWith(*presented.identity);
    }
  }
  // gRPC has no more to say about the peer at a Unix socket.
  const std::string peer = context.peer();
  return {.role = PeerRole::kViewer,
          .name = peer == "unix:" ? "a Unix socket" : peer};
}

}  // namespace cohort
