#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/listen_address.h"
#include "common/ops/listen_socket.h"
#include "common/wire/shared_security.h"
#include "server/access/access_control.h"
#include "server/rpc/accept_loop.h"
#include "server/rpc/call_counts.h"

namespace grpc {
class CallbackGenericService;
class Server;
class Service;
}  // namespace grpc

namespace cohort {

struct TransportOptions {
  // The flag that set `listen`, for errors.
  std::string flag = "--listen";
  // host:port or a Unix socket; port 0 takes a free one.
  std::string listen;
  int32_t workers = 1;
  int64_t inflight_bytes_max = 0;
  // Null: plaintext.
  SharedSecurity security;
  // Decides about encrypted calls; must outlive the transport. Not null if
  // `security` encrypts.
  AccessControl* access = nullptr;
  // Connections of one address, except this machine's own. 0: four for each
  // worker and 64 more.
  int32_t connections_per_address = 0;
  // Connections in all; 0: as many as files may be open.
  int64_t connections_max = 0;
  // Gives the answer to a call of a method that is not served here, such as
  // where it is. On any thread. Null: gRPC's own answer.
  std::function<std::string(absl::string_view method)> unserved;
};

// A gRPC server with its services and its accept loops.
// Thread safety: none.
class Transport {
 public:
  using Services = std::vector<std::unique_ptr<grpc::Service>>;

  // `counts` must outlive it.
  // Errors: Unavailable: the address cannot be listened on.
  static absl::StatusOr<std::unique_ptr<Transport>> Start(
      const TransportOptions& options, Services services, CallCounts& counts);
  ~Transport();

  const ListenAddress& address() const { return address_; }
  // Stops accepting connections; calls in progress get `grace` to finish.
  void Shutdown(absl::Duration grace);

 private:
  Transport() = default;

  ListenAddress address_;
  // Answers calls of methods that are not served; may be null.
  std::unique_ptr<grpc::CallbackGenericService> unserved_;
  // Destroyed in the reverse order: each uses those before it.
  Services services_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<AcceptLoop> accept_;
};

}  // namespace cohort
