#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/file_descriptor.h"

namespace cohort {

// A message and the descriptors that came with it.
struct Packet {
  std::vector<std::byte> bytes;
  std::vector<FileDescriptor> files;
};

// One end of a connection between two processes of a host that carries
// messages and descriptors (SOCK_SEQPACKET). Never raises SIGPIPE.
//
// Thread safety: one thread may send while another one receives.
class PacketSocket {
 public:
  static constexpr size_t kBytesMax = 1024;
  static constexpr size_t kFilesMax = 8;

  // `name` is that of a PacketListener.
  // Errors: Unavailable with the reason of the system.
  static absl::StatusOr<PacketSocket> Connect(const std::string& name);
  explicit PacketSocket(FileDescriptor socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.get(); }

  // Never blocks. Errors: Unavailable if the peer is gone or does not read.
  absl::Status Send(absl::Span<const std::byte> bytes,
                    absl::Span<const int> files);
  // Waits at most for `timeout`, which may be zero.
  // Errors: DeadlineExceeded; Unavailable if the peer is gone;
  //   InvalidArgument if the message exceeds the limits above.
  absl::StatusOr<Packet> Receive(absl::Duration timeout);

  // The peer's user, as the kernel knows it. Errors: Internal.
  absl::StatusOr<uint32_t> PeerUser() const;

 private:
  FileDescriptor socket_;
};

// A socket that accepts such connections, under a path in the file system, or
// under a name that begins with "@": such a name exists as long as the socket
// does, in this network namespace. The destructor removes a path; a process
// that is killed leaves it behind.
class PacketListener {
 public:
  // Errors: Unavailable with the reason of the system; InvalidArgument if the
  //   name is longer than the system permits.
  static absl::StatusOr<PacketListener> Open(const std::string& name);
  PacketListener(PacketListener&& other) noexcept = default;
  ~PacketListener();

  int fd() const { return socket_.get(); }
  const std::string& name() const { return name_; }
  // Never blocks. Errors: Unavailable if no connection is waiting;
  //   ResourceExhausted if one is, but the system has no descriptor for it.
  absl::StatusOr<PacketSocket> Accept();

 private:
  PacketListener(FileDescriptor socket, std::string name)
      : socket_(std::move(socket)), name_(std::move(name)) {}

  FileDescriptor socket_;
  std::string name_;
};

}  // namespace cohort
