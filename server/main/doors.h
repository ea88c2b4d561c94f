#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/listen_address.h"
#include "common/local/shared_float_files.h"
#include "server/local/local_door.h"
#include "server/main/server_options.h"
#include "server/main/server_security.h"
#include "server/rpc/call_counts.h"
#include "server/rpc/transport.h"
#include "server/run/run_host.h"

namespace cohort {

// The ways into a server process: the port of gRPC, a separate one for Admin if
// there is --admin_listen, and shared memory for workers of this host.
// Thread safety: none.
class Doors {
 public:
  // All references must outlive it.
  Doors(const ServerOptions& options, ServerSecurity& security,
        CallCounts& counts)
      : options_(options), security_(security), counts_(counts) {}

  // Lets workers of this host share memory, in which `weights` lie. No-op if
  // that is null. `run` must outlive it.
  // Errors: Unavailable, if --local insists on it.
  absl::Status OpenLocal(RunHost& run,
                         std::shared_ptr<const SharedFloatFiles> weights);
  // Errors: Unavailable: an address cannot be listened on.
  absl::Status ListenForAdmin(Transport::Services services);
  // `unserved` as in TransportOptions.
  absl::Status Listen(
      Transport::Services services, int64_t inflight_bytes_max,
      std::function<std::string(absl::string_view method)> unserved);
  // Logs who can connect.
  void LogReach() const;
  // Refuses new calls and ends those in progress after a while.
  void Shutdown();

  // Null if no memory is shared.
  LocalDoor* local() const { return local_.get(); }
  const ListenAddress& address() const { return transport_->address(); }
  // Empty without --admin_listen.
  std::string admin_address() const {
    return admin_ == nullptr ? "" : admin_->address().ToString();
  }

 private:
  const ServerOptions& options_;
  ServerSecurity& security_;
  CallCounts& counts_;

  // Destroyed in the reverse order: each uses those before it.
  std::unique_ptr<LocalDoor> local_;
  std::unique_ptr<Transport> admin_;
  std::unique_ptr<Transport> transport_;
};

}  // namespace cohort
