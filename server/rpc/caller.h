#pragma once

#include <grpcpp/server_context.h>

#include <string>

#include "common/security/authenticator.h"

namespace cohort {

// The identity in the certificate of a call's connection, if it has one.
Presented PresentedBy(const grpc::AuthContext& connection);

// The name under which the calls of a connection are counted: its identity, or
// one name for all clients without a certificate.
std::string CountedAs(const grpc::AuthContext& connection);

// The identity in the certificate of a call's connection as text, "a token"
// for a client without one, empty without encryption.
std::string IdentityNameOf(const grpc::ServerContextBase& context);

// The client of a call that was admitted. Without encryption, and for a token,
// its name is its address and it may act for every rank.
Caller CallerOf(const grpc::ServerContextBase& context);

}  // namespace cohort
