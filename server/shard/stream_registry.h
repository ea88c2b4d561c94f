#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "server/shard/streams.h"

namespace cohort {

// Where effects go: sessions by their number, data streams by the life of the
// worker that speaks on them. Also counts all open streams, bounds them, and
// ends them when the server stops.
//
// A rank has at most one stream each to register, exchange and reduce. Streams
// that say nothing never keep out those that want to speak. Streams come back
// to the caller when they lose their place, because End must not run under the
// registry's lock.
//
// Thread safety: safe. Never calls a stream.
class StreamRegistry {
 public:
  using Streams = std::vector<std::shared_ptr<Stream>>;

  struct Limits {
    int32_t sessions = 64;
    int32_t streams = 1024;
  };

  // Room for processes that wait for a rank which is still alive, and for the
  // streams of a life that is being replaced.
  static Limits LimitsOf(int32_t workers) {
    return {.sessions = 2 * workers + 64, .streams = 16 * workers + 512};
  }

  explicit StreamRegistry(Limits limits) : limits_(limits) {}

  // From now on; what is open stays open.
  void SetLimits(Limits limits);

  // Counts a stream as open until Forget. It must speak by `speak_by`; absent:
  // its request has come already. Where all places are taken, the stream that
  // has been silent for longest loses its place and is appended to `evicted`.
  // Errors: Unavailable (the server stops), ResourceExhausted (all places are
  //   taken by streams that have spoken).
  absl::Status Admit(const std::shared_ptr<Stream>& stream,
                     std::optional<Instant> speak_by = std::nullopt,
                     Streams* evicted = nullptr);
  // Also numbers the session, which must be bound by `join_by`; sessions that
  // are not bound count as silent. Errors: as Admit.
  absl::StatusOr<SessionId> AdmitSession(
      const std::shared_ptr<SessionStream>& stream, Instant join_by,
      Streams* evicted = nullptr);
  // The first message of a stream that is no session has come.
  void Spoke(const Stream* stream);
  // Streams that have not spoken, and sessions that are not bound, though
  // their time is up. Each is returned once and has lost its place.
  Streams TakeSilent(Instant now);
  // All that are open.
  Streams All() const;
  // The stream is over: no effect reaches it any more.
  void Forget(const Stream* stream);

  // Effects for this life go to `stream`, which must be admitted, from now on.
  // Returns the stream that lost to it: the one that had its place or, if that
  // one was opened later, `stream` itself. Null if nothing changed.
  std::shared_ptr<Stream> PutRegister(
      Rank rank, Incarnation incarnation,
      const std::shared_ptr<RegisterStream>& stream);
  std::shared_ptr<Stream> PutExchange(
      Rank rank, Incarnation incarnation,
      const std::shared_ptr<ExchangeStream>& stream);
  std::shared_ptr<Stream> PutReduce(
      Rank rank, Incarnation incarnation,
      const std::shared_ptr<ReduceStream>& stream);

  // `session` speaks for this life of `rank`. Returns data streams of older
  // lives.
  Streams Bind(SessionId session, Rank rank, Incarnation incarnation);
  // The core has ended the session. Returns the data streams of the life it
  // spoke for, unless a newer session of that life has taken over.
  Streams Unbind(SessionId session);

  // Null if there is none (any more).
  std::shared_ptr<SessionStream> Session(SessionId session) const;
  std::shared_ptr<RegisterStream> Register(Rank rank,
                                           Incarnation incarnation) const;
  std::shared_ptr<ExchangeStream> Exchange(Rank rank,
                                           Incarnation incarnation) const;
  std::shared_ptr<ReduceStream> Reduce(Rank rank,
                                       Incarnation incarnation) const;

  // Sessions that are open now.
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
    // Absent: has spoken or, of a session, is bound.
    std::optional<Instant> speak_by;
    // Absent: no session.
    std::optional<SessionId> session;
    // Has lost its place and is about to end; not counted.
    bool evicted = false;
  };
  struct Binding {
    SessionId session;
    Incarnation incarnation;
  };

  absl::Status AdmitLocked(const std::shared_ptr<Stream>& stream,
                           std::optional<Instant> speak_by, Streams* evicted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes the place of the stream that has been silent for longest, among the
  // sessions only or among all. False: none is silent.
  bool EvictSilentLocked(bool sessions_only, Streams* evicted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<Stream> TakePlaceLocked(OpenStream& open)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  template <typename T>
  std::shared_ptr<Stream> PutLocked(Places<T>& places, Rank rank,
                                    Incarnation incarnation,
                                    const std::shared_ptr<T>& stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  Limits limits_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  int64_t next_session_ ABSL_GUARDED_BY(mu_) = 1;
  int64_t next_stream_ ABSL_GUARDED_BY(mu_) = 1;
  std::map<const Stream*, OpenStream> open_ ABSL_GUARDED_BY(mu_);
  int32_t evicted_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<SessionId, std::shared_ptr<SessionStream>> sessions_
      ABSL_GUARDED_BY(mu_);
  // Which session speaks for a rank.
  std::map<Rank, Binding> bindings_ ABSL_GUARDED_BY(mu_);
  Places<RegisterStream> registers_ ABSL_GUARDED_BY(mu_);
  Places<ExchangeStream> exchanges_ ABSL_GUARDED_BY(mu_);
  Places<ReduceStream> reduces_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cohort
