#pragma once

#include <unistd.h>

#include <utility>

namespace cohort {

// Owns a file descriptor; -1 is none.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.Release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) {
      Close();
      fd_ = other.Release();
    }
    return *this;
  }
  ~FileDescriptor() { Close(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  // The caller must close it.
  int Release() { return std::exchange(fd_, -1); }
  // close(2) may report a failed write, by -1; the destructor cannot.
  int Close() { return valid() ? close(Release()) : 0; }

 private:
  int fd_ = -1;
};

}  // namespace cohort
