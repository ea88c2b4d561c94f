#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/listen_address.h"

namespace cohort {

// A listening TCP socket. The destructor closes it unless it was released.
class ListenSocket {
 public:
  // If `address` has port 0, it is set to the actual port.
  // Errors: Unavailable naming `flag`, the reason and a remedy.
  static absl::StatusOr<ListenSocket> Open(absl::string_view flag,
                                           ListenAddress& address);
  ListenSocket(ListenSocket&& other) noexcept;
  ListenSocket& operator=(ListenSocket&&) = delete;
  ~ListenSocket();

  // The caller must close it.
  int Release();

 private:
  explicit ListenSocket(int fd) : fd_(fd) {}

  int fd_ = -1;
};

}  // namespace cohort
