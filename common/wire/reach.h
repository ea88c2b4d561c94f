#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/security/tls_files.h"

namespace cohort {

// Whether a gRPC server answers at `address`, the target of `channel`,
// whatever it answers; if not, why. A channel does not say by itself why it
// cannot connect. `tls` are the files behind the channel's security. Blocks for
// two `timeout` at most.
// Thread safety: safe.
// Errors: Unavailable with a text such as "cannot be reached (Connection
//   refused)", without the address.
absl::Status Reach(const std::shared_ptr<grpc::Channel>& channel,
                   const std::string& address, const TlsFiles& tls,
                   absl::Duration timeout);

}  // namespace cohort
