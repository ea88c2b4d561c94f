#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/file_descriptor.h"
#include "common/ops/listen_socket.h"
#include "common/periodic_task.h"
#include "server/rpc/connections_by_address.h"

namespace grpc::experimental {
class ExternalConnectionAcceptor;
}  // namespace grpc::experimental

namespace cohort {

// Accepts connections and hands them to a gRPC server.
//
// The listener of gRPC 1.51 never accepts again once an accept has failed for
// lack of a file descriptor, although the rest of the process works. This class
// reserves some descriptors for files and the operations port, closes
// connections above that limit at once, and never stops accepting.
//
// Thread safety: safe. Destroy it before the gRPC server shuts down.
class AcceptLoop {
 public:
  // `files_max` is the limit on descriptors for connections, `each_max` that on
  // connections of one address.
  AcceptLoop(
      ListenSocket socket,
      std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> server,
      int64_t files_max, int32_t each_max);
  ~AcceptLoop();

  // Connections that were closed at once: no descriptor was left, or their
  // address had too many.
  int64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  // Blocks until there is something to accept or the object is destroyed.
  void AcceptSome();
  // Returns false if there is nothing left to accept.
  bool AcceptOne();
  std::string NoFiles() const;
  // OK if this process's user, or root, is at the other end, or if the file
  // system has checked it.
  absl::Status CheckUser(int fd) const;
  void Refuse(int fd, absl::string_view reason);

  const ListenSocket listen_;
  const FileDescriptor wake_;
  // Closed for a moment if no other descriptor is left, so that a connection
  // can be accepted and closed.
  FileDescriptor spare_;
  const int64_t files_max_;
  const std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> server_;
  // Used by the accepting thread only.
  ConnectionsByAddress by_address_;
  // A counter only, so relaxed order is enough.
  std::atomic<int64_t> refused_ = 0;

  // Last: its thread uses everything above.
  std::unique_ptr<PeriodicTask> task_;
};

}  // namespace cohort
