#pragma once

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/file_descriptor.h"
#include "common/listen_address.h"
#include "common/ops/socket_file.h"

namespace cohort {

// A listening socket, of TCP or of Unix. The destructor closes it unless it was
// released, and removes the file of a Unix socket.
class ListenSocket {
 public:
  // If `address` has port 0, it is set to the actual port.
  // Only processes of this user may connect to a Unix socket. The system sees
  // to that for a path; for an abstract name the caller must (own_user_only).
  // Errors: Unavailable naming `flag`, the reason and a remedy.
  static absl::StatusOr<ListenSocket> Open(absl::string_view flag,
                                           ListenAddress& address);

  int fd() const { return fd_.get(); }
  // True if connections of other users must be refused.
  bool own_user_only() const { return own_user_only_; }
  // For TCP only.
  FileDescriptor Release() { return std::move(fd_); }

 private:
  explicit ListenSocket(int fd) : fd_(fd) {}

  static absl::StatusOr<ListenSocket> OpenUnix(absl::string_view flag,
                                               const ListenAddress& address);

  FileDescriptor fd_;
  bool own_user_only_ = false;
  // Last, so removed first: as long as the socket listens, no other process
  // takes its place.
  SocketFile file_;
};

}  // namespace cohort
