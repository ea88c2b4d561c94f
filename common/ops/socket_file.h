#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"

namespace cohort {

// The file under which a listening Unix socket is found. The destructor removes
// it. A process that is killed leaves it behind; the next one replaces it.
class SocketFile {
 public:
  // No file.
  SocketFile() = default;
  // Makes `fd` listen at `path`. Only this user may connect (mode 0600). A file
  // that a killed process has left is replaced.
  // Errors: Unavailable with the reason: another process listens there, or no
  //   socket can be made there.
  static absl::StatusOr<SocketFile> Listen(int fd, const std::string& path,
                                           int backlog);
  SocketFile(SocketFile&& other) noexcept;
  SocketFile& operator=(SocketFile&& other) noexcept;
  ~SocketFile() { Remove(); }

 private:
  void Remove();

  // Empty for none.
  std::string path_;
  // Identity of the file that was made, so that no other one is removed.
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace cohort
