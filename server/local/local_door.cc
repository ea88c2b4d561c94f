#include "server/local/local_door.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/folder_lock.h"
#include "common/local/local_messages.h"
#include "common/log/log.h"
#include "common/status_macros.h"
#include "server/local/local_socket.h"

namespace cohort {
namespace {

// A worker shows its token right after it has connected.
constexpr absl::Duration kHelloPatience = absl::Seconds(5);
// While there is no descriptor for a connection, it would be offered again at
// once.
constexpr absl::Duration kAcceptPause = absl::Seconds(1);
// A worker connects once; more strangers than this are none.
constexpr size_t kStrangersMax = 64;

absl::StatusOr<PacketListener> Listen(const std::string& directory) {
  // Before this door has a socket: the search connects to live ones to find the
  // sockets of killed servers, and a door logs such a connection as refused.
  RemoveLeftSockets(directory);
  const std::string name = NewSocketName(directory);
  if (directory.empty()) return PacketListener::Open(name);
  // Between its two steps the socket looks like that of a killed server.
  COHORT_ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::Take(directory));
  COHORT_ASSIGN_OR_RETURN(PacketListener listener, PacketListener::Open(name));
  chmod(name.c_str(), S_IRUSR | S_IWUSR);
  return listener;
}

void Refuse(PacketSocket& socket, const absl::Status& why) {
  local::Reply reply{.kind = local::ReplyKind::kRefused};
  const absl::string_view text = why.message().substr(0, local::kTextBytes - 1);
  std::memcpy(reply.text, text.data(), text.size());
  // A stranger that has gone needs no answer.
  (void)socket.Send(local::BytesOf(reply), {});
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalDoor>> LocalDoor::Open(
    LocalDoorOptions options, const Clock& clock) {
  COHORT_ASSIGN_OR_RETURN(PacketListener listener, Listen(options.directory));
  FileDescriptor wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) {
    return absl::UnavailableError(
        absl::StrCat("eventfd: ", std::strerror(errno)));
  }
  COHORT_ASSIGN_OR_RETURN(std::unique_ptr<LocalInbox> inbox,
                          LocalInbox::Open());
  return std::unique_ptr<LocalDoor>(
      new LocalDoor(std::move(options), clock, std::move(listener),
                    std::move(wake), std::move(inbox)));
}

LocalDoor::LocalDoor(LocalDoorOptions options, const Clock& clock,
                     PacketListener listener, FileDescriptor wake,
                     std::unique_ptr<LocalInbox> inbox)
    : options_(std::move(options)),
      clock_(clock),
      wake_(std::move(wake)),
      inbox_(std::move(inbox)),
      listener_(std::move(listener)),
      task_(std::make_unique<PeriodicTask>("local-door", absl::ZeroDuration(),
                                           [this] { Serve(); })) {}

LocalDoor::~LocalDoor() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  Ring(wake_.get());
  task_.reset();
}

LocalDoor::Offer LocalDoor::Invite(Rank rank, Incarnation incarnation) {
  Offer offer{.socket = listener_.name(),
              .token = RandomHex(local::kTokenBytes)};
  std::shared_ptr<LocalPeer> replaced;
  {
    MutexLock lock(mu_);
    Member& member = members_[rank];
    if (member.incarnation != incarnation) {
      replaced = std::exchange(member.peer, nullptr);
    }
    member.incarnation = incarnation;
    member.token = offer.token;
  }
  if (replaced != nullptr) {
    Forget(*replaced);
    // The thread may be waiting on the descriptor of the peer that is gone.
    Ring(wake_.get());
  }
  return offer;
}

std::shared_ptr<LocalPeer> LocalDoor::Find(Rank rank,
                                           Incarnation incarnation) const {
  MutexLock lock(mu_);
  const auto found = members_.find(rank);
  if (found == members_.end() || found->second.incarnation != incarnation) {
    return nullptr;
  }
  return found->second.peer;
}

void LocalDoor::Serve() {
  std::vector<pollfd> watched = {{wake_.get(), POLLIN, 0}};
  const bool accepts = accepting();
  if (accepts) watched.push_back({listener_.fd(), POLLIN, 0});
  for (const Stranger& stranger : strangers_) {
    watched.push_back({stranger.socket.fd(), POLLIN, 0});
  }
  {
    MutexLock lock(mu_);
    if (stopping_) return;
    for (const auto& [rank, member] : members_) {
      if (member.peer == nullptr) continue;
      watched.push_back({member.peer->fd(), POLLIN, 0});
    }
  }
  // Only deadlines need a look without an event: that of a stranger, and the
  // end of a pause in accepting.
  constexpr int kCheckMs = 1'000;
  poll(watched.data(), watched.size(),
       accepts && strangers_.empty() ? -1 : kCheckMs);
  uint64_t wakes = 0;
  // Nothing to read if the thread woke for another reason.
  (void)!read(wake_.get(), &wakes, sizeof(wakes));
  if (accepting()) Accept();
  HearStrangers();
  ForgetGone();
}

void LocalDoor::Accept() {
  for (;;) {
    absl::StatusOr<PacketSocket> socket = listener_.Accept();
    if (absl::IsResourceExhausted(socket.status())) {
      Log(LogLevel::kWarning, absl::StrCat("shared memory: cannot let in a "
                                           "worker, which uses TCP: ",
                                           socket.status().message()));
      accept_from_ = clock_.Now() + kAcceptPause;
    }
    if (!socket.ok()) return;
    if (strangers_.size() >= kStrangersMax) strangers_.pop_front();
    strangers_.push_back(
        {.socket = *std::move(socket), .until = clock_.Now() + kHelloPatience});
  }
}

void LocalDoor::HearStrangers() {
  for (auto it = strangers_.begin(); it != strangers_.end();) {
    const absl::Status admitted = Admit(it->socket);
    if (absl::IsDeadlineExceeded(admitted) && clock_.Now() < it->until) {
      ++it;
      continue;
    }
    if (!admitted.ok()) {
      Log(LogLevel::kInfo, absl::StrCat("shared memory: refused a process: ",
                                        admitted.message()));
      Refuse(it->socket, admitted);
    }
    it = strangers_.erase(it);
  }
}

absl::Status LocalDoor::Admit(PacketSocket& socket) {
  COHORT_ASSIGN_OR_RETURN(const Packet packet,
                          socket.Receive(absl::ZeroDuration()));
  COHORT_ASSIGN_OR_RETURN(const local::Hello hello,
                          local::MessageFrom<local::Hello>(packet.bytes));
  COHORT_ASSIGN_OR_RETURN(const uint32_t user, socket.PeerUser());
  if (user != geteuid()) {
    return absl::PermissionDeniedError(
        absl::StrCat("got a process of user ", user, ", want one of user ",
                     geteuid(), ", as the server is"));
  }
  const auto invited =
      TakeInvitation(std::string(hello.token, sizeof(hello.token)));
  if (!invited.has_value()) {
    return absl::PermissionDeniedError(
        "got an unknown token, want that of the newest join, once");
  }
  // From here on the token is used up. If anything fails, the worker stays on
  // its connection until it joins again.
  const auto [rank, incarnation] = *invited;
  COHORT_ASSIGN_OR_RETURN(const std::shared_ptr<LocalPeer> peer,
                          MakePeer(socket, rank));
  std::shared_ptr<LocalPeer> before;
  {
    MutexLock lock(mu_);
    Member& member = members_[rank];
    if (member.incarnation != incarnation) {
      return absl::AbortedError("a newer process took over this rank");
    }
    before = std::exchange(member.peer, peer);
  }
  // A worker that returns has closed its connection before it joined again.
  if (before != nullptr) Forget(*before);
  if (options_.serve) {
    inbox_->Add(peer, options_.serve(rank, incarnation, peer));
  }
  // Last: the worker may use the peer as soon as it is welcome.
  const absl::Status welcomed = peer->Welcome();
  if (!welcomed.ok()) {
    Forget(*peer);
    return welcomed;
  }
  // A log of many workers has one line for all of them, and none for a
  // replacement.
  bool all = false;
  {
    MutexLock lock(mu_);
    all = members_.size() > logged_workers_ &&
          std::all_of(members_.begin(), members_.end(), [](const auto& member) {
            return member.second.peer != nullptr;
          });
    if (all) logged_workers_ = members_.size();
  }
  if (all) {
    Log(LogLevel::kInfo,
        "all workers exchange gradients and weights through shared memory");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<LocalPeer>> LocalDoor::MakePeer(
    PacketSocket& socket, Rank entering) {
  const std::optional<LocalNeeds> needs = options_.needs();
  if (!needs.has_value()) {
    return absl::FailedPreconditionError(
        "got a worker before the model is registered");
  }
  const int64_t wanted = LayOutArena(needs->partitions).size_bytes;
  int64_t arenas = wanted;
  {
    MutexLock lock(mu_);
    for (const auto& [rank, member] : members_) {
      // The arena of a worker that returns takes the place of its former one.
      if (rank != entering && member.peer != nullptr) arenas += wanted;
    }
  }
  if (options_.arena_bytes_max > 0 && arenas > options_.arena_bytes_max) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "got ", arenas,
        " bytes of gradients of all workers, want "
        "at most ",
        options_.arena_bytes_max, ", half of the server's memory"));
  }
  return LocalPeer::Make(std::move(socket), *needs, options_.weights);
}

std::optional<std::pair<Rank, Incarnation>> LocalDoor::TakeInvitation(
    const std::string& token) {
  MutexLock lock(mu_);
  for (auto& [rank, member] : members_) {
    if (member.token != token) continue;
    member.token.clear();
    return std::make_pair(rank, member.incarnation);
  }
  return std::nullopt;
}

void LocalDoor::ForgetGone() {
  std::vector<std::shared_ptr<LocalPeer>> gone;
  {
    MutexLock lock(mu_);
    for (auto& [rank, member] : members_) {
      if (member.peer == nullptr) continue;
      pollfd state{member.peer->fd(), POLLIN, 0};
      // Workers send nothing after their first message.
      if (poll(&state, 1, 0) > 0)
        gone.push_back(std::exchange(member.peer, {}));
    }
  }
  for (const auto& peer : gone) Forget(*peer);
}

void LocalDoor::Forget(LocalPeer& peer) {
  inbox_->Remove(peer);
  peer.Forget();
}

}  // namespace cohort
