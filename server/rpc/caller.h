#pragma once

#include <grpcpp/server_context.h>

#include "common/security/authenticator.h"

namespace cohort {

// What a call's connection presents: the identity of its certificate, if it has
// one.
Presented PresentedBy(const grpc::AuthContext& connection);

// The client of a call that was admitted. Without encryption, and for a token,
// its name is its address and it may act for every rank.
Caller CallerOf(const grpc::ServerContextBase& context);

}  // namespace cohort
