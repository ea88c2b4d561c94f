#include "common/local/message_pipe.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <climits>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/spin_wait.h"

namespace cohort {
namespace {

constexpr uint32_t kLengthBytes = sizeof(uint32_t);

uint32_t Load(uint32_t& word) {
  return std::atomic_ref<uint32_t>(word).load(std::memory_order_acquire);
}

void Store(uint32_t& word, uint32_t value) {
  std::atomic_ref<uint32_t>(word).store(value, std::memory_order_release);
}

absl::Status Damaged(const char* what, uint32_t got, uint32_t most) {
  return absl::DataLossError(
      absl::StrCat("shared memory: got ", what, " of ", got,
                   " bytes from the other process, want at most ", most));
}

}  // namespace

int64_t MessagePipe::SizeBytes(int64_t capacity) {
  return static_cast<int64_t>(sizeof(Header)) + capacity;
}

MessagePipe::MessagePipe(absl::Span<std::byte> own,
                         absl::Span<const std::byte> other)
    : capacity_(static_cast<uint32_t>(own.size() - sizeof(Header))),
      own_(reinterpret_cast<Header*>(own.data())),
      outgoing_(own.data() + sizeof(Header)),
      // Only read; std::atomic_ref has no version for constants.
      other_(reinterpret_cast<Header*>(const_cast<std::byte*>(other.data()))),
      incoming_(other.data() + sizeof(Header)) {
  COHORT_CHECK(own.size() == other.size() && std::has_single_bit(capacity_),
               absl::StrCat("got memories of ", own.size(), " and ",
                            other.size(), " bytes"));
}

absl::Status MessagePipe::Send(absl::Span<const std::byte> message) {
  if (message.size() + kLengthBytes > capacity_) {
    return absl::InvalidArgumentError(
        absl::StrCat("shared memory: got a message of ", message.size(),
                     " bytes, want at most ", capacity_ - kLengthBytes,
                     ", the room for the layers of the model; start "
                     "the worker with --local=tcp (COHORT_LOCAL=tcp)"));
  }
  const uint32_t unread = sent_ - Load(other_->received);
  if (unread > capacity_) return Damaged("unread messages", unread, capacity_);
  const size_t room = capacity_ - unread;
  if (message.size() + kLengthBytes > room) {
    return absl::ResourceExhaustedError(
        absl::StrCat("shared memory: got a message of ", message.size(),
                     " bytes, want one ", "that fits into ", room,
                     " bytes: ", unread, " bytes are not received yet"));
  }
  const auto length = static_cast<uint32_t>(message.size());
  CopyIn(sent_, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(&length),
                                    kLengthBytes));
  CopyIn(sent_ + kLengthBytes, message);
  sent_ += kLengthBytes + length;
  Store(own_->sent, sent_);
  return absl::OkStatus();
}

void MessagePipe::WakeOther() const {
  syscall(SYS_futex, &own_->sent, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

absl::StatusOr<std::optional<std::string>> MessagePipe::Receive() {
  const uint32_t waiting = Load(other_->sent) - received_;
  if (waiting == 0) return std::nullopt;
  if (waiting > capacity_) return Damaged("messages", waiting, capacity_);
  uint32_t length = 0;
  if (waiting < kLengthBytes) return Damaged("a length", waiting, waiting);
  CopyOut(received_,
          absl::MakeSpan(reinterpret_cast<std::byte*>(&length), kLengthBytes));
  if (length > waiting - kLengthBytes) {
    return Damaged("a message", length, waiting - kLengthBytes);
  }
  std::string message(length, '\0');
  CopyOut(received_ + kLengthBytes,
          absl::MakeSpan(reinterpret_cast<std::byte*>(message.data()), length));
  received_ += kLengthBytes + length;
  Store(own_->received, received_);
  return message;
}

void MessagePipe::Wait(absl::Duration timeout) const {
  if (SpinUntil(std::min(kSpinMax, timeout),
                [this] { return Load(other_->sent) != received_; })) {
    return;
  }
  const timespec limit = absl::ToTimespec(timeout);
  // Returns at once if something has been sent since: the kernel compares the
  // word before it waits.
  syscall(SYS_futex, &other_->sent, FUTEX_WAIT, received_, &limit, nullptr, 0);
}

void MessagePipe::CopyIn(uint32_t at, absl::Span<const std::byte> bytes) {
  const size_t begin = at & (capacity_ - 1);
  const size_t first = std::min(bytes.size(), capacity_ - begin);
  std::memcpy(outgoing_ + begin, bytes.data(), first);
  std::memcpy(outgoing_, bytes.data() + first, bytes.size() - first);
}

void MessagePipe::CopyOut(uint32_t at, absl::Span<std::byte> bytes) const {
  const size_t begin = at & (capacity_ - 1);
  const size_t first = std::min(bytes.size(), capacity_ - begin);
  std::memcpy(bytes.data(), incoming_ + begin, first);
  std::memcpy(bytes.data() + first, incoming_, bytes.size() - first);
}

}  // namespace cohort
