#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "server/streams/streams.h"

namespace cohort {

// Time from the opening of a session to its join, and of any other stream to
// its first message.
inline constexpr absl::Duration kJoinDeadline = absl::Seconds(5);
inline constexpr absl::Duration kFirstMessageDeadline = absl::Seconds(15);

// Finds the streams that receive effects: sessions by their number, data
// streams by the incarnation of the worker that uses them. Also counts all open
// streams, limits them, and ends them when the server stops.
//
// A rank has at most one stream each to register, exchange and reduce. Silent
// streams never keep out streams that send. Streams that lose their place are
// returned to the caller, because End must not run under the registry's lock.
//
// Thread safety: safe. Never calls a stream.
class StreamRegistry {
 public:
  using Streams = std::vector<std::shared_ptr<Stream>>;

  struct Limits {
    int32_t sessions = 64;
    int32_t streams = 1024;
  };

  // Includes room for processes that wait for a rank which is still held, and
  // for the streams of an incarnation that is being replaced.
  static Limits LimitsOf(int32_t workers) {
    return {.sessions = 2 * workers + 64, .streams = 16 * workers + 512};
  }

  explicit StreamRegistry(Limits limits) : limits_(limits) {}

  // Applies from now on; open streams stay open.
  void SetLimits(Limits limits);

  // Counts a stream as open until Forget. It must send its first message by
  // `speak_by`; absent if its request has already arrived. If all places are
  // taken, the stream that has been silent longest loses its place and is
  // appended to `evicted`.
  // Errors: Unavailable (the server stops), ResourceExhausted (all places are
  //   taken by streams that have sent a message).
  absl::Status Admit(const std::shared_ptr<Stream>& stream,
                     std::optional<Instant> speak_by = std::nullopt,
                     Streams* evicted = nullptr);
  // Also numbers the session, which must be bound by `join_by`; unbound
  // sessions count as silent. Errors: as Admit.
  absl::StatusOr<SessionId> AdmitSession(
      const std::shared_ptr<SessionStream>& stream, Instant join_by,
      Streams* evicted = nullptr);
  // Records the first message of a stream that is not a session.
  void Spoke(const Stream* stream);
  // Streams that have sent nothing and sessions that are not bound, after their
  // deadline. Each is returned once and has lost its place.
  Streams TakeSilent(Instant now);
  // All open streams.
  Streams All() const;
  // The stream is over: no effect reaches it any more.
  void Forget(const Stream* stream);

  // Effects for this incarnation go to `stream`, which must be admitted, from
  // now on; T is RegisterStream, ExchangeStream or ReduceStream. Returns the
  // stream that lost its place: the previous one or, if that one was opened
  // later, `stream` itself. Null if nothing changed.
  template <typename T>
  std::shared_ptr<Stream> Put(Rank rank, Incarnation incarnation,
                              const std::shared_ptr<T>& stream)
      ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    Places<T>& places = std::get<Places<T>>(places_);
    const auto at = places.find(rank);
    const Stream* present =
        at == places.end() ? nullptr : at->second.stream.get();
    if (!MayTakeLocked(
            present,
            present != nullptr && at->second.incarnation == incarnation,
            stream.get())) {
      return stream;
    }
    if (present == stream.get()) return nullptr;
    open_.at(stream.get()).rank = rank;
    Place<T>& place = places[rank];
    std::shared_ptr<Stream> displaced = std::move(place.stream);
    place = {.incarnation = incarnation, .stream = stream};
    return displaced;
  }

  // The stream that effects for this incarnation go to; null if there is none.
  template <typename T>
  std::shared_ptr<T> Find(Rank rank, Incarnation incarnation) const
      ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    const Places<T>& places = std::get<Places<T>>(places_);
    const auto at = places.find(rank);
    return at == places.end() || at->second.incarnation != incarnation
               ? nullptr
               : at->second.stream;
  }

  // Binds `session` to this incarnation of `rank`. Returns data streams of
  // older incarnations.
  Streams Bind(SessionId session, Rank rank, Incarnation incarnation);
  // The core has ended the session. Returns the data streams of its
  // incarnation, unless a newer session of that incarnation has taken over.
  Streams Unbind(SessionId session);

  // Null if there is no such session any more.
  std::shared_ptr<SessionStream> Session(SessionId session) const;

  // The number of open sessions.
  int32_t sessions() const;
  // Refuses further streams and returns all open ones.
  Streams Close();

 private:
  template <typename T>
  struct Place {
    Incarnation incarnation;
    std::shared_ptr<T> stream;
  };
  template <typename T>
  using Places = std::map<Rank, Place<T>>;
  struct OpenStream {
    int64_t number = 0;
    std::shared_ptr<Stream> stream;
    // Absent if it has sent a message or, for a session, is bound.
    std::optional<Instant> speak_by;
    // Absent if it is not a session.
    std::optional<SessionId> session;
    // True if it has lost its place and is about to end; it is not counted.
    bool evicted = false;
    // Absent if no effects go to it.
    std::optional<Rank> rank;
  };
  struct Binding {
    SessionId session;
    Incarnation incarnation;
  };

  absl::Status AdmitLocked(const std::shared_ptr<Stream>& stream,
                           std::optional<Instant> speak_by, Streams* evicted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Evicts the stream that has been silent longest, among the sessions only or
  // among all. Returns false if none is silent.
  bool EvictSilentLocked(bool sessions_only, Streams* evicted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<Stream> TakePlaceLocked(OpenStream& open)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SpokeLocked(OpenStream& open) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // False if `stream` lost its place while its message was on the way, or if
  // `present`, which has the place, is a newer one of the same incarnation.
  bool MayTakeLocked(const Stream* present, bool same_incarnation,
                     const Stream* stream) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  Limits limits_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  int64_t next_session_ ABSL_GUARDED_BY(mu_) = 1;
  int64_t next_stream_ ABSL_GUARDED_BY(mu_) = 1;
  std::map<const Stream*, OpenStream> open_ ABSL_GUARDED_BY(mu_);
  // Those with `speak_by`, by their numbers: few, while open_ has several of
  // each worker.
  std::map<int64_t, const Stream*> silent_ ABSL_GUARDED_BY(mu_);
  int32_t evicted_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<SessionId, std::shared_ptr<SessionStream>> sessions_
      ABSL_GUARDED_BY(mu_);
  // The session bound to each rank.
  std::map<Rank, Binding> bindings_ ABSL_GUARDED_BY(mu_);
  // The rank of each bound session; the reverse of bindings_.
  std::map<SessionId, Rank> bound_ ABSL_GUARDED_BY(mu_);
  std::tuple<Places<RegisterStream>, Places<ExchangeStream>,
             Places<ReduceStream>>
      places_ ABSL_GUARDED_BY(mu_);
};

// Ends streams that Admit has evicted.
void EndEvicted(const StreamRegistry::Streams& streams);
// Ends a stream whose place a newer one has taken. No-op if null.
void EndDisplaced(const std::shared_ptr<Stream>& stream);

}  // namespace cohort
