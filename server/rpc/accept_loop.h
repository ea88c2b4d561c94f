#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "common/ops/listen_socket.h"
#include "common/periodic_task.h"

namespace grpc::experimental {
class ExternalConnectionAcceptor;
}  // namespace grpc::experimental

namespace cohort {

// Accepts connections and hands them to a gRPC server.
//
// The listener of gRPC 1.51 never accepts again once one accept has failed for
// want of a file descriptor, although everything else of the process works.
// This one keeps some descriptors back for files and the operations port,
// closes what comes above that at once, and never stops accepting.
//
// Thread safety: safe. Destroy it before the gRPC server shuts down.
class AcceptLoop {
 public:
  // `files_max`: descriptors that connections may take up to.
  AcceptLoop(
      ListenSocket socket,
      std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> server,
      int64_t files_max);
  ~AcceptLoop();

  // Connections that were closed at once because no descriptor was left.
  int64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  // Blocks until there is something to accept or the object is destroyed.
  void AcceptSome();
  // False: nothing to accept is left.
  bool AcceptOne();
  void Refuse(int fd);

  const int listen_fd_;
  const int wake_fd_;
  // Given up for a moment where no other descriptor is left, so that a
  // connection can be taken and closed.
  int spare_fd_;
  const int64_t files_max_;
  const std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> server_;
  // A counter only, so relaxed order is enough.
  std::atomic<int64_t> refused_ = 0;

  // Last: its thread uses everything above.
  std::unique_ptr<PeriodicTask> task_;
};

}  // namespace cohort
