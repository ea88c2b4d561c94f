#include "server/local/local_peer.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/local/local_messages.h"
#include "common/status_macros.h"

namespace cohort {

absl::StatusOr<std::shared_ptr<LocalPeer>> LocalPeer::Make(
    PacketSocket socket, const LocalNeeds& needs,
    std::shared_ptr<const SharedFloatFiles> weights) {
  ArenaLayout layout = LayOutArena(needs.partitions);
  const auto count = static_cast<int32_t>(needs.partitions.size());
  COHORT_ASSIGN_OR_RETURN(
      SharedMemory memory,
      SharedMemory::Create("cohort-gradients", layout.size_bytes,
                           SharedMemory::Writer::kOthers));
  COHORT_ASSIGN_OR_RETURN(
      SharedMemory counts,
      SharedMemory::Create("cohort-releases", ReleaseCounts::SizeBytes(count),
                           SharedMemory::Writer::kCreator));
  std::vector<int64_t> elements;
  for (const Partition& partition : needs.partitions) {
    elements.push_back(partition.elements);
  }
  auto arena = std::make_shared<Arena>(
      Arena{.memory = std::move(memory),
            .releases = ReleaseCounts(std::move(counts), count)});
  COHORT_ASSIGN_OR_RETURN(std::unique_ptr<MailMemory> mail,
                          MakeMail(needs.message_bytes));
  return std::shared_ptr<LocalPeer>(
      new LocalPeer(std::move(socket), std::move(layout), std::move(elements),
                    std::move(arena), std::move(mail), std::move(weights)));
}

absl::StatusOr<std::unique_ptr<LocalPeer::MailMemory>> LocalPeer::MakeMail(
    int64_t capacity) {
  const int64_t bytes = MessagePipe::SizeBytes(capacity);
  COHORT_ASSIGN_OR_RETURN(SharedMemory requests,
                          SharedMemory::Create("cohort-requests", bytes,
                                               SharedMemory::Writer::kOthers));
  COHORT_ASSIGN_OR_RETURN(SharedMemory replies,
                          SharedMemory::Create("cohort-replies", bytes,
                                               SharedMemory::Writer::kCreator));
  FileDescriptor bell(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell.valid()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("shared memory: eventfd: ", std::strerror(errno)));
  }
  const MessagePipe pipe(replies.writable_bytes(), requests.bytes());
  return std::make_unique<MailMemory>(
      MailMemory{.requests = std::move(requests),
                 .replies = std::move(replies),
                 .bell = std::move(bell),
                 .pipe = pipe});
}

LocalPeer::LocalPeer(PacketSocket socket, ArenaLayout layout,
                     std::vector<int64_t> elements,
                     std::shared_ptr<Arena> arena,
                     std::unique_ptr<MailMemory> mail,
                     std::shared_ptr<const SharedFloatFiles> weights)
    : layout_(std::move(layout)),
      elements_(std::move(elements)),
      arena_(std::move(arena)),
      weights_(std::move(weights)),
      mail_(std::move(mail)),
      socket_(std::move(socket)) {}

absl::Status LocalPeer::Welcome() {
  const local::Reply reply{.kind = local::ReplyKind::kWelcome,
                           .bytes = arena_->memory.size_bytes(),
                           .counts_bytes = arena_->releases.size_bytes(),
                           .pipe_bytes = mail_->replies.size_bytes()};
  const int files[] = {arena_->memory.fd(), arena_->releases.fd(),
                       mail_->requests.fd(), mail_->replies.fd(),
                       mail_->bell.get()};
  MutexLock lock(mu_);
  COHORT_RETURN_IF_ERROR(socket_.Send(local::BytesOf(reply), files));
  return AnnounceLocked();
}

absl::StatusOr<ByteRope> LocalPeer::Gradient(int32_t partition,
                                             ElementType type) const {
  const auto index = static_cast<size_t>(partition);
  if (partition < 0 || index >= elements_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("gradient: got partition ",
                                                   partition, ", want 0 to ",
                                                   elements_.size() - 1));
  }
  const auto bytes = arena_->memory.bytes().subspan(
      static_cast<size_t>(layout_.offsets[index]),
      static_cast<size_t>(elements_[index] * BytesOf(type)));
  // The worker writes there again once the last rope has let go of this.
  const std::shared_ptr<const void> lease(
      bytes.data(), [arena = arena_, partition](const void*) {
        arena->releases.Raise(partition);
      });
  return ByteRope(bytes, lease);
}

std::optional<SharedPlace> LocalPeer::Share(const PushKey& key,
                                            const SharedFloats& weights) {
  const std::optional<SharedPlace> place = weights->place();
  if (!place.has_value()) return std::nullopt;
  MutexLock lock(mu_);
  if (!reachable_) return std::nullopt;
  if (place->file >= announced_ && !AnnounceLocked().ok()) {
    reachable_ = false;
    return std::nullopt;
  }
  lent_.push_back({.key = key, .weights = weights});
  return place;
}

void LocalPeer::Opened(const PushKey& key) {
  // Destroyed after the lock is released.
  std::vector<Lent> over;
  MutexLock lock(mu_);
  over.swap(lent_);
  for (Lent& lent : over) {
    if (lent.key == key) lent_.push_back(std::move(lent));
  }
}

void LocalPeer::Forget() {
  std::vector<Lent> over;
  MutexLock lock(mu_);
  over.swap(lent_);
  reachable_ = false;
}

absl::Status LocalPeer::Send(absl::string_view message) {
  MutexLock lock(send_mu_);
  COHORT_RETURN_IF_ERROR(mail_->pipe.Send(absl::MakeConstSpan(
      reinterpret_cast<const std::byte*>(message.data()), message.size())));
  mail_->pipe.WakeOther();
  return absl::OkStatus();
}

absl::Status LocalPeer::AnnounceLocked() {
  for (const auto& file : weights_->FilesFrom(announced_)) {
    const local::Reply reply{.kind = local::ReplyKind::kFile,
                             .bytes = file->size_bytes()};
    const int fd = file->fd();
    COHORT_RETURN_IF_ERROR(
        socket_.Send(local::BytesOf(reply), absl::MakeConstSpan(&fd, 1)));
    ++announced_;
  }
  return absl::OkStatus();
}

}  // namespace cohort
