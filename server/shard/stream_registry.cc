#include "server/shard/stream_registry.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

// Moves the stream of `rank` to `out` if `condition` holds for its incarnation.
template <typename Places, typename Condition>
void TakeIf(Places& places, Rank rank, Condition condition,
            StreamRegistry::Streams& out) {
  const auto at = places.find(rank);
  if (at == places.end() || !condition(at->second.incarnation)) return;
  out.push_back(std::move(at->second.stream));
  places.erase(at);
}

template <typename Places>
auto Find(const Places& places, Rank rank, Incarnation incarnation) {
  const auto at = places.find(rank);
  using Pointer = decltype(at->second.stream);
  if (at == places.end() || at->second.incarnation != incarnation) {
    return Pointer();
  }
  return Pointer(at->second.stream);
}

template <typename Places>
void EraseStream(Places& places, const Stream* stream) {
  std::erase_if(places, [stream](const auto& entry) {
    return entry.second.stream.get() == stream;
  });
}

}  // namespace

void StreamRegistry::SetLimits(Limits limits) {
  MutexLock lock(mu_);
  limits_ = limits;
}

std::shared_ptr<Stream> StreamRegistry::TakePlaceLocked(OpenStream& open) {
  open.evicted = true;
  open.speak_by.reset();
  ++evicted_;
  if (open.session.has_value()) sessions_.erase(*open.session);
  return open.stream;
}

bool StreamRegistry::EvictSilentLocked(bool sessions_only, Streams* evicted) {
  OpenStream* oldest = nullptr;
  for (auto& [key, open] : open_) {
    if (!open.speak_by.has_value()) continue;
    if (sessions_only && !open.session.has_value()) continue;
    if (oldest == nullptr || open.number < oldest->number) oldest = &open;
  }
  if (oldest == nullptr || evicted == nullptr) return false;
  evicted->push_back(TakePlaceLocked(*oldest));
  return true;
}

absl::Status StreamRegistry::AdmitLocked(const std::shared_ptr<Stream>& stream,
                                         std::optional<Instant> speak_by,
                                         Streams* evicted) {
  if (closed_) return absl::UnavailableError("the server is stopping");
  const size_t counted = open_.size() - static_cast<size_t>(evicted_);
  if (counted >= static_cast<size_t>(limits_.streams) &&
      !EvictSilentLocked(/*sessions_only=*/false, evicted)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("got stream ", counted + 1, ", want at most ",
                     limits_.streams, " at a time"));
  }
  open_[stream.get()] = {
      .number = next_stream_++, .stream = stream, .speak_by = speak_by};
  return absl::OkStatus();
}

absl::Status StreamRegistry::Admit(const std::shared_ptr<Stream>& stream,
                                   std::optional<Instant> speak_by,
                                   Streams* evicted) {
  MutexLock lock(mu_);
  return AdmitLocked(stream, speak_by, evicted);
}

absl::StatusOr<SessionId> StreamRegistry::AdmitSession(
    const std::shared_ptr<SessionStream>& stream, Instant join_by,
    Streams* evicted) {
  MutexLock lock(mu_);
  if (sessions_.size() >= static_cast<size_t>(limits_.sessions) &&
      !EvictSilentLocked(/*sessions_only=*/true, evicted)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("got session ", sessions_.size() + 1, ", want at most ",
                     limits_.sessions, " at a time"));
  }
  COHORT_RETURN_IF_ERROR(AdmitLocked(stream, join_by, evicted));
  const SessionId id(next_session_++);
  sessions_[id] = stream;
  open_[stream.get()].session = id;
  return id;
}

void StreamRegistry::Spoke(const Stream* stream) {
  MutexLock lock(mu_);
  const auto at = open_.find(stream);
  // A session must join, whatever else it sends.
  if (at == open_.end() || at->second.session.has_value()) return;
  at->second.speak_by.reset();
}

StreamRegistry::Streams StreamRegistry::TakeSilent(Instant now) {
  Streams silent;
  MutexLock lock(mu_);
  for (auto& [key, open] : open_) {
    if (!open.speak_by.has_value() || now < *open.speak_by) continue;
    silent.push_back(TakePlaceLocked(open));
  }
  return silent;
}

StreamRegistry::Streams StreamRegistry::All() const {
  Streams all;
  MutexLock lock(mu_);
  for (const auto& [key, open] : open_) all.push_back(open.stream);
  return all;
}

void StreamRegistry::Forget(const Stream* stream) {
  // Destroyed after the lock is released.
  std::shared_ptr<Stream> last;
  MutexLock lock(mu_);
  const auto at = open_.find(stream);
  if (at == open_.end()) return;
  last = std::move(at->second.stream);
  if (at->second.evicted) --evicted_;
  if (at->second.session.has_value()) sessions_.erase(*at->second.session);
  open_.erase(at);
  EraseStream(exchanges_, stream);
  EraseStream(reduces_, stream);
  EraseStream(registers_, stream);
}

template <typename T>
std::shared_ptr<Stream> StreamRegistry::PutLocked(
    Places<T>& places, Rank rank, Incarnation incarnation,
    const std::shared_ptr<T>& stream) {
  // The stream lost its place while its message was on the way.
  const auto open = open_.find(stream.get());
  if (open == open_.end() || open->second.evicted) return stream;
  Place<T>& place = places[rank];
  if (place.stream == stream) return nullptr;
  // A message that was still in transit on the older stream must not take the
  // place back.
  if (place.stream != nullptr && place.incarnation == incarnation &&
      open_[place.stream.get()].number > open->second.number) {
    return stream;
  }
  std::shared_ptr<Stream> displaced = std::move(place.stream);
  place = {.incarnation = incarnation, .stream = stream};
  return displaced;
}

std::shared_ptr<Stream> StreamRegistry::PutRegister(
    Rank rank, Incarnation incarnation,
    const std::shared_ptr<RegisterStream>& stream) {
  MutexLock lock(mu_);
  return PutLocked(registers_, rank, incarnation, stream);
}

std::shared_ptr<Stream> StreamRegistry::PutExchange(
    Rank rank, Incarnation incarnation,
    const std::shared_ptr<ExchangeStream>& stream) {
  MutexLock lock(mu_);
  return PutLocked(exchanges_, rank, incarnation, stream);
}

std::shared_ptr<Stream> StreamRegistry::PutReduce(
    Rank rank, Incarnation incarnation,
    const std::shared_ptr<ReduceStream>& stream) {
  MutexLock lock(mu_);
  return PutLocked(reduces_, rank, incarnation, stream);
}

StreamRegistry::Streams StreamRegistry::Bind(SessionId session, Rank rank,
                                             Incarnation incarnation) {
  Streams older;
  MutexLock lock(mu_);
  bindings_[rank] = {.session = session, .incarnation = incarnation};
  const auto at = sessions_.find(session);
  if (at != sessions_.end()) open_[at->second.get()].speak_by.reset();
  const auto is_older = [incarnation](Incarnation i) {
    return i < incarnation;
  };
  TakeIf(registers_, rank, is_older, older);
  TakeIf(exchanges_, rank, is_older, older);
  TakeIf(reduces_, rank, is_older, older);
  return older;
}

StreamRegistry::Streams StreamRegistry::Unbind(SessionId session) {
  Streams ended;
  MutexLock lock(mu_);
  for (auto at = bindings_.begin(); at != bindings_.end(); ++at) {
    if (at->second.session != session) continue;
    const auto same = [incarnation = at->second.incarnation](Incarnation i) {
      return i == incarnation;
    };
    TakeIf(registers_, at->first, same, ended);
    TakeIf(exchanges_, at->first, same, ended);
    TakeIf(reduces_, at->first, same, ended);
    bindings_.erase(at);
    break;
  }
  return ended;
}

std::shared_ptr<SessionStream> StreamRegistry::Session(
    SessionId session) const {
  MutexLock lock(mu_);
  const auto at = sessions_.find(session);
  return at == sessions_.end() ? nullptr : at->second;
}

std::shared_ptr<RegisterStream> StreamRegistry::Register(
    Rank rank, Incarnation incarnation) const {
  MutexLock lock(mu_);
  return Find(registers_, rank, incarnation);
}

std::shared_ptr<ExchangeStream> StreamRegistry::Exchange(
    Rank rank, Incarnation incarnation) const {
  MutexLock lock(mu_);
  return Find(exchanges_, rank, incarnation);
}

std::shared_ptr<ReduceStream> StreamRegistry::Reduce(
    Rank rank, Incarnation incarnation) const {
  MutexLock lock(mu_);
  return Find(reduces_, rank, incarnation);
}

int32_t StreamRegistry::sessions() const {
  MutexLock lock(mu_);
  return static_cast<int32_t>(sessions_.size());
}

StreamRegistry::Streams StreamRegistry::Close() {
  Streams all;
  MutexLock lock(mu_);
  closed_ = true;
  for (const auto& [key, open] : open_) all.push_back(open.stream);
  return all;
}

}  // namespace cohort
