#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/listen_address.h"

namespace cohort {

// A TCP socket that listens. Closes it unless it is given away.
class ListenSocket {
 public:
  // Gives `address` the port that was taken if it asks for 0.
  // Errors: Unavailable naming `flag`, the reason and a way out.
  static absl::StatusOr<ListenSocket> Open(absl::string_view flag,
                                           ListenAddress& address);
  ListenSocket(ListenSocket&& other) noexcept;
  ListenSocket& operator=(ListenSocket&&) = delete;
  ~ListenSocket();

  // The caller closes it.
  int Release();

 private:
  explicit ListenSocket(int fd) : fd_(fd) {}

  int fd_ = -1;
};

}  // namespace cohort
