#include "server/rpc/caller.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cohort {

Presented PresentedBy(const grpc::AuthContext& connection) {
  Presented presented;
  // gRPC sets it only for a verified certificate.
  for (const grpc::string_ref& uri :
       connection.FindPropertyValues(GRPC_PEER_SPIFFE_ID_PROPERTY_NAME)) {
    absl::StatusOr<Identity> identity =
        ParseIdentity(absl::string_view(uri.data(), uri.size()));
    if (identity.ok()) presented.identity = *std::move(identity);
  }
  return presented;
}

std::string CountedAs(const grpc::AuthContext& connection) {
  const Presented presented = PresentedBy(connection);
  return presented.identity.has_value() ? presented.identity->Uri()
                                        : "all clients with a token together";
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
  return {.role = PeerRole::kViewer, .name = context.peer()};
}

}  // namespace cohort
