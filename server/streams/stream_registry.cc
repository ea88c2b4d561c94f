#include "server/streams/stream_registry.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

// Moves the streams of `rank` to `out` whose incarnation meets `condition`.
template <typename AllPlaces, typename Condition>
void TakeIf(AllPlaces& all, Rank rank, Condition condition,
            StreamRegistry::Streams& out) {
  const auto take = [&](auto& places) {
    const auto at = places.find(rank);
    if (at == places.end() || !condition(at->second.incarnation)) return;
    out.push_back(std::move(at->second.stream));
    places.erase(at);
  };
  std::apply([&take](auto&... places) { (take(places), ...); }, all);
}

}  // namespace

void StreamRegistry::SetLimits(Limits limits) {
  MutexLock lock(mu_);
  limits_ = limits;
}

std::shared_ptr<Stream> StreamRegistry::TakePlaceLocked(OpenStream& open) {
  open.evicted = true;
  SpokeLocked(open);
  ++evicted_;
  if (open.session.has_value()) sessions_.erase(*open.session);
  return open.stream;
}

void StreamRegistry::SpokeLocked(OpenStream& open) {
  open.speak_by.reset();
  silent_.erase(open.number);
}

bool StreamRegistry::EvictSilentLocked(bool sessions_only, Streams* evicted) {
  if (evicted == nullptr) return false;
  for (const auto& [number, stream] : silent_) {
    OpenStream& open = open_.at(stream);
    if (sessions_only && !open.session.has_value()) continue;
    evicted->push_back(TakePlaceLocked(open));
    return true;
  }
  return false;
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
  const int64_t number = next_stream_++;
  open_[stream.get()] = {
      .number = number, .stream = stream, .speak_by = speak_by};
  if (speak_by.has_value()) silent_[number] = stream.get();
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
  SpokeLocked(at->second);
}

StreamRegistry::Streams StreamRegistry::TakeSilent(Instant now) {
  Streams silent;
  MutexLock lock(mu_);
  for (auto at = silent_.begin(); at != silent_.end();) {
    // TakePlaceLocked erases the entry.
    OpenStream& open = open_.at((at++)->second);
    if (now >= *open.speak_by) silent.push_back(TakePlaceLocked(open));
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
  silent_.erase(at->second.number);
  const std::optional<Rank> rank = at->second.rank;
  open_.erase(at);
  if (!rank.has_value()) return;
  const auto erase = [&rank, stream](auto& places) {
    const auto place = places.find(*rank);
    if (place != places.end() && place->second.stream.get() == stream) {
      places.erase(place);
    }
  };
  std::apply([&erase](auto&... places) { (erase(places), ...); }, places_);
}

bool StreamRegistry::MayTakeLocked(const Stream* present, bool same_incarnation,
                                   const Stream* stream) const {
  const auto open = open_.find(stream);
  if (open == open_.end() || open->second.evicted) return false;
  // A message that was still in transit on the older stream must not take the
  // place back.
  const auto other = open_.find(present);
  return other == open_.end() || !same_incarnation ||
         other->second.number <= open->second.number;
}

StreamRegistry::Streams StreamRegistry::Bind(SessionId session, Rank rank,
                                             Incarnation incarnation) {
  Streams older;
  MutexLock lock(mu_);
  const auto [bound, first] = bindings_.try_emplace(rank);
  if (!first) bound_.erase(bound->second.session);
  bound->second = {.session = session, .incarnation = incarnation};
  bound_[session] = rank;
  const auto at = sessions_.find(session);
  if (at != sessions_.end()) {
    OpenStream& open = open_.at(at->second.get());
    open.rank = rank;
    SpokeLocked(open);
  }
  const auto is_older = [incarnation](Incarnation i) {
    return i < incarnation;
  };
  TakeIf(places_, rank, is_older, older);
  return older;
}

StreamRegistry::Streams StreamRegistry::Unbind(SessionId session) {
  Streams ended;
  MutexLock lock(mu_);
  const auto bound = bound_.find(session);
  if (bound == bound_.end()) return ended;
  const Rank rank = bound->second;
  const auto at = bindings_.find(rank);
  const auto same = [incarnation = at->second.incarnation](Incarnation i) {
    return i == incarnation;
  };
  TakeIf(places_, rank, same, ended);
  bindings_.erase(at);
  bound_.erase(bound);
  return ended;
}

std::shared_ptr<SessionStream> StreamRegistry::Session(
    SessionId session) const {
  MutexLock lock(mu_);
  const auto at = sessions_.find(session);
  return at == sessions_.end() ? nullptr : at->second;
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

void EndEvicted(const StreamRegistry::Streams& streams) {
  EndAll(streams,
         absl::ResourceExhaustedError("too many streams are open, and this one "
                                      "has sent nothing yet; try again"));
}

void EndDisplaced(const std::shared_ptr<Stream>& stream) {
  if (stream == nullptr) return;
  stream->End(
      absl::AbortedError("a newer stream of this worker replaced this one"));
}

}  // namespace cohort
