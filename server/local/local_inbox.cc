#include "server/local/local_inbox.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/check.h"
#include "common/spin_wait.h"

namespace cohort {
namespace {

constexpr int kEventsMax = 64;
// Then the other workers have their turn.
constexpr int kMessagesPerTurn = 64;

absl::Status Failed(const char* what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// Each write to `bell` is one event (edge-triggered), so it is never read, and
// no worker can take back what it or another one has announced.
bool Watch(int poll, int bell, uint64_t number) {
  epoll_event event{.events = EPOLLIN | EPOLLET, .data = {.u64 = number}};
  return epoll_ctl(poll, EPOLL_CTL_ADD, bell, &event) == 0;
}

}  // namespace

void Ring(int bell) {
  const uint64_t one = 1;
  // A full count has been announced, too.
  COHORT_CHECK(write(bell, &one, sizeof(one)) == sizeof(one) || errno == EAGAIN,
               std::strerror(errno));
}

absl::StatusOr<std::unique_ptr<LocalInbox>> LocalInbox::Open() {
  FileDescriptor poll(epoll_create1(EPOLL_CLOEXEC));
  if (!poll.valid()) return Failed("epoll_create1");
  FileDescriptor wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return Failed("eventfd");
  if (!Watch(poll.get(), wake.get(), 0)) return Failed("epoll_ctl");
  return std::unique_ptr<LocalInbox>(
      new LocalInbox(std::move(poll), std::move(wake)));
}

LocalInbox::LocalInbox(FileDescriptor poll, FileDescriptor wake)
    : poll_(std::move(poll)),
      wake_(std::move(wake)),
      task_(std::make_unique<PeriodicTask>("local-inbox", absl::ZeroDuration(),
                                           [this] { Serve(); })) {}

LocalInbox::~LocalInbox() {
  stopping_ = true;
  Ring(wake_.get());
  task_.reset();
}

void LocalInbox::Add(const std::shared_ptr<LocalPeer>& peer,
                     std::shared_ptr<LocalService> service) {
  MutexLock lock(mu_);
  const uint64_t number = next_number_++;
  if (!Watch(poll_.get(), peer->bell(), number)) {
    service->OnDamage(Failed("epoll_ctl"));
    return;
  }
  entries_.emplace(number, Entry{.peer = peer, .service = std::move(service)});
}

void LocalInbox::Remove(const LocalPeer& peer) {
  std::shared_ptr<LocalService> gone;
  {
    MutexLock lock(mu_);
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      if (it->second.peer.get() != &peer) continue;
      // The worker may still have the file behind the descriptor.
      epoll_ctl(poll_.get(), EPOLL_CTL_DEL, peer.bell(), nullptr);
      gone = std::move(it->second.service);
      entries_.erase(it);
      break;
    }
  }
  if (gone != nullptr) gone->OnGone();
}

void LocalInbox::Serve() {
  // The event of the destructor comes once.
  if (stopping_) return;
  epoll_event events[kEventsMax];
  int count = 0;
  // After a message, often the next one comes soon. A bell that does not have
  // to wake this thread also costs the worker less.
  SpinUntil(kSpinMax, [&] {
    count = epoll_wait(poll_.get(), events, kEventsMax, /*timeout=*/0);
    return count != 0;
  });
  if (count == 0) {
    count = epoll_wait(poll_.get(), events, kEventsMax, /*timeout=*/-1);
  }
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 != 0) Read(events[i].data.u64);
  }
}

void LocalInbox::Read(uint64_t number) {
  Entry entry;
  {
    MutexLock lock(mu_);
    const auto found = entries_.find(number);
    if (found == entries_.end()) return;
    entry = found->second;
  }
  for (int i = 0; i < kMessagesPerTurn; ++i) {
    absl::StatusOr<std::optional<std::string>> message = entry.peer->Receive();
    if (!message.ok()) {
      entry.service->OnDamage(message.status());
      return;
    }
    if (!message->has_value()) return;
    entry.service->OnMessage(**std::move(message));
  }
  Ring(entry.peer->bell());
}

}  // namespace cohort
