#include "common/local/packet_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "common/unix_address.h"

namespace cohort {
namespace {

constexpr int kBacklog = 64;

absl::Status Failed(const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

FileDescriptor NewSocket() {
  return FileDescriptor(
      socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// The descriptors that arrived with a message. They are owned at once, so that
// none leaks, whatever the message is.
std::vector<FileDescriptor> TakeFiles(msghdr& message) {
  std::vector<FileDescriptor> files;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      files.emplace_back(fd);
    }
  }
  return files;
}

}  // namespace

absl::StatusOr<PacketSocket> PacketSocket::Connect(const std::string& name) {
  COHORT_ASSIGN_OR_RETURN(const UnixAddress address, UnixAddressOf(name));
  FileDescriptor socket = NewSocket();
  if (!socket.valid() ||
      connect(socket.get(), address.get(), address.size) != 0) {
    return Failed(name);
  }
  return PacketSocket(std::move(socket));
}

absl::Status PacketSocket::Send(absl::Span<const std::byte> bytes,
                                absl::Span<const int> files) {
  COHORT_CHECK(bytes.size() <= kBytesMax && files.size() <= kFilesMax,
               "the message is too large");
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kFilesMax * sizeof(int))] = {};
  if (!files.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(files.size() * sizeof(int));
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(files.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), files.data(), files.size() * sizeof(int));
  }
  ssize_t sent = -1;
  do {
    sent = sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return Failed("sending to a process of this host");
  return absl::OkStatus();
}

absl::StatusOr<Packet> PacketSocket::Receive(absl::Duration timeout) {
  pollfd waited{fd(), POLLIN, 0};
  int ready = 0;
  do {
    ready =
        poll(&waited, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout)));
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) {
    return absl::DeadlineExceededError(
        absl::StrCat("a process of this host sent nothing within ",
                     absl::FormatDuration(timeout)));
  }
  Packet packet;
  packet.bytes.resize(kBytesMax);
  iovec part{packet.bytes.data(), packet.bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kFilesMax * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t received = recvmsg(fd(), &message, MSG_CMSG_CLOEXEC);
  if (received < 0) return Failed("receiving from a process of this host");
  packet.files = TakeFiles(message);
  if (received == 0) {
    return absl::UnavailableError(
        "a process of this host closed the connection");
  }
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("got a message of more than ", kBytesMax, " bytes or ",
                     kFilesMax, " files from a process of this host"));
  }
  packet.bytes.resize(static_cast<size_t>(received));
  return packet;
}

absl::StatusOr<uint32_t> PacketSocket::PeerUser() const {
  return PeerUserOf(fd());
}

absl::StatusOr<PacketListener> PacketListener::Open(const std::string& name) {
  COHORT_ASSIGN_OR_RETURN(const UnixAddress address, UnixAddressOf(name));
  FileDescriptor socket = NewSocket();
  if (!socket.valid() || bind(socket.get(), address.get(), address.size) != 0) {
    return Failed(name);
  }
  PacketListener listener(std::move(socket), name);
  if (listen(listener.fd(), kBacklog) != 0) return Failed(name);
  return listener;
}

PacketListener::~PacketListener() {
  if (socket_.valid() && !IsAbstractSocket(name_)) unlink(name_.c_str());
}

absl::StatusOr<PacketSocket> PacketListener::Accept() {
  FileDescriptor accepted(
      accept4(fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!accepted.valid()) {
    const bool full = errno == EMFILE || errno == ENFILE || errno == ENOMEM;
    const absl::Status failed = Failed(name_);
    return full ? absl::ResourceExhaustedError(failed.message()) : failed;
  }
  return PacketSocket(std::move(accepted));
}

}  // namespace cohort
