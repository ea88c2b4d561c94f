#include "worker/client/local_link.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/local/local_messages.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

constexpr absl::Duration kAnswerPatience = absl::Seconds(10);
// Between two looks at whether the connection still holds.
constexpr absl::Duration kCheckInterval = absl::Milliseconds(50);

absl::Status RefusalIn(const local::Reply& reply) {
  const char* const end =
      std::find(reply.text, reply.text + sizeof(reply.text), '\0');
  return absl::PermissionDeniedError(absl::StrCat(
      "the server refuses shared memory: ", std::string(reply.text, end)));
}

// Maps the file of `packet` at `index`.
absl::StatusOr<SharedMemory> MapFile(Packet& packet, size_t index,
                                     int64_t bytes, bool writable) {
  if (index >= packet.files.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("shared memory: got ", packet.files.size(),
                     " files, want at least ", index + 1));
  }
  return SharedMemory::Map(std::move(packet.files[index]), bytes, writable);
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalLink>> LocalLink::Connect(
    const std::string& socket_path, const std::string& token,
    const std::vector<Partition>& partitions) {
  local::Hello hello;
  if (token.size() != sizeof(hello.token)) {
    return absl::InvalidArgumentError(
        absl::StrCat("shared memory: got a token of ", token.size(),
                     " characters, want ", sizeof(hello.token)));
  }
  std::memcpy(hello.token, token.data(), token.size());
  COHORT_ASSIGN_OR_RETURN(PacketSocket socket,
                          PacketSocket::Connect(socket_path));
  COHORT_RETURN_IF_ERROR(socket.Send(local::BytesOf(hello), {}));
  absl::StatusOr<Packet> packet = socket.Receive(kAnswerPatience);
  if (absl::IsDeadlineExceeded(packet.status())) {
    return absl::UnavailableError(
        absl::StrCat(socket_path, ": ", packet.status().message()));
  }
  COHORT_RETURN_IF_ERROR(packet.status());
  COHORT_ASSIGN_OR_RETURN(const local::Reply reply,
                          local::MessageFrom<local::Reply>(packet->bytes));
  if (reply.kind != local::ReplyKind::kWelcome) return RefusalIn(reply);
  ArenaLayout layout = LayOutArena(partitions);
  const auto count = static_cast<int32_t>(partitions.size());
  if (reply.bytes != layout.size_bytes ||
      reply.counts_bytes != ReleaseCounts::SizeBytes(count)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shared memory: got an arena of ", reply.bytes, " and counts of ",
        reply.counts_bytes, " bytes, want ", layout.size_bytes, " and ",
        ReleaseCounts::SizeBytes(count)));
  }
  COHORT_ASSIGN_OR_RETURN(SharedMemory arena,
                          MapFile(*packet, 0, reply.bytes, /*writable=*/true));
  COHORT_ASSIGN_OR_RETURN(
      SharedMemory counts,
      MapFile(*packet, 1, reply.counts_bytes, /*writable=*/false));
  COHORT_ASSIGN_OR_RETURN(
      SharedMemory requests,
      MapFile(*packet, 2, reply.pipe_bytes, /*writable=*/true));
  COHORT_ASSIGN_OR_RETURN(
      SharedMemory replies,
      MapFile(*packet, 3, reply.pipe_bytes, /*writable=*/false));
  if (packet->files.size() < 5) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shared memory: got ", packet->files.size(), " files, want 5"));
  }
  const MessagePipe pipe(requests.writable_bytes(), replies.bytes());
  return std::unique_ptr<LocalLink>(
      new LocalLink(std::move(socket), std::move(layout), std::move(arena),
                    ReleaseCounts(std::move(counts), count),
                    {.requests = std::move(requests),
                     .replies = std::move(replies),
                     .bell = std::move(packet->files[4]),
                     .pipe = pipe}));
}

LocalLink::LocalLink(PacketSocket socket, ArenaLayout layout,
                     SharedMemory arena, ReleaseCounts releases,
                     MailMemory mail)
    : layout_(std::move(layout)),
      releases_(std::move(releases)),
      arena_(std::move(arena)),
      written_(layout_.offsets.size(), 0),
      mail_(std::move(mail)),
      socket_(std::move(socket)) {}

absl::Status LocalLink::Write(int32_t partition, const ByteRope& gradient,
                              const Clock& clock, absl::Duration patience,
                              absl::FunctionRef<absl::Status()> check) {
  const auto index = static_cast<size_t>(partition);
  const Instant give_up = clock.Now() + patience;
  for (;;) {
    const uint32_t released = releases_.Get(partition);
    if (released == written_[index]) break;
    COHORT_RETURN_IF_ERROR(check());
    if (clock.Now() >= give_up) {
      return absl::DeadlineExceededError(absl::StrCat(
          "shared memory: the server has not released the gradient of "
          "partition ",
          partition, " within ", absl::FormatDuration(patience)));
    }
    releases_.WaitWhile(partition, released, kCheckInterval);
  }
  gradient.CopyTo(arena_.writable_bytes().subspan(
      static_cast<size_t>(layout_.offsets[index]),
      static_cast<size_t>(gradient.size_bytes())));
  ++written_[index];
  return absl::OkStatus();
}

absl::Status LocalLink::SendMessage(absl::string_view message,
                                    absl::FunctionRef<absl::Status()> check) {
  // The server reads at once; it is late only if it is stopped.
  constexpr absl::Duration kPause = absl::Milliseconds(1);
  const absl::Span<const std::byte> bytes = absl::MakeConstSpan(
      reinterpret_cast<const std::byte*>(message.data()), message.size());
  for (;;) {
    const absl::Status sent = mail_.pipe.Send(bytes);
    if (sent.ok()) break;
    if (!absl::IsResourceExhausted(sent)) return sent;
    COHORT_RETURN_IF_ERROR(check());
    mail_.pipe.Wait(kPause);
  }
  const uint64_t one = 1;
  // A full count has announced it, too.
  (void)!write(mail_.bell.get(), &one, sizeof(one));
  return absl::OkStatus();
}

absl::StatusOr<ByteRope> LocalLink::Weights(const SharedPlace& place,
                                            int64_t elements) {
  const int64_t bytes = elements * static_cast<int64_t>(sizeof(float));
  MutexLock lock(mu_);
  const auto known = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return place.file >= 0 && static_cast<size_t>(place.file) < files_.size();
  };
  // The server passes a file before it first refers to it.
  if (!known()) COHORT_RETURN_IF_ERROR(TakeFilesLocked());
  if (!known() || place.offset < 0 || place.offset % 64 != 0 ||
      bytes > files_[static_cast<size_t>(place.file)]->size_bytes() ||
      place.offset >
          files_[static_cast<size_t>(place.file)]->size_bytes() - bytes) {
    return absl::DataLossError(absl::StrCat(
        "shared memory: got weights in file ", place.file, " at byte ",
        place.offset, ", want a place in one of ", files_.size(), " files"));
  }
  const std::shared_ptr<const SharedMemory>& file =
      files_[static_cast<size_t>(place.file)];
  return ByteRope(file->bytes().subspan(static_cast<size_t>(place.offset),
                                        static_cast<size_t>(bytes)),
                  file);
}

absl::Status LocalLink::TakeFilesLocked() {
  for (;;) {
    absl::StatusOr<Packet> packet = socket_.Receive(absl::ZeroDuration());
    if (absl::IsDeadlineExceeded(packet.status())) return absl::OkStatus();
    COHORT_RETURN_IF_ERROR(packet.status());
    COHORT_ASSIGN_OR_RETURN(const local::Reply reply,
                            local::MessageFrom<local::Reply>(packet->bytes));
    if (reply.kind != local::ReplyKind::kFile) return RefusalIn(reply);
    COHORT_ASSIGN_OR_RETURN(SharedMemory file, MapFile(*packet, 0, reply.bytes,
                                                       /*writable=*/false));
    files_.push_back(std::make_shared<SharedMemory>(std::move(file)));
  }
}

}  // namespace cohort
