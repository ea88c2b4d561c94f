#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "server/shard/stream_registry.h"
#include "server/shard/streams.h"

namespace cohort {

// Limits the pulls in progress and the versions that they keep in memory.
// Otherwise a client that stops reading would pin one copy of the weights for
// each pull. A pull that makes no progress loses its place to a new one.
//
// Thread safety: safe. Never calls a stream.
class PullTable {
 public:
  struct Limits {
    int32_t pulls = 64;
    int32_t pulls_per_peer = 8;
    int32_t versions = 4;
    // Pulls without progress for this long may lose their places.
    absl::Duration stalled_after = absl::Seconds(1);
  };

  explicit PullTable(Limits limits) : limits_(limits) {}

  // Counts `pull` of `version` until Forget. `peer` names the connection; if it
  // is empty, the connection is not limited by itself. Pulls that lose their
  // places to it are appended to `evicted`; the caller must cut them.
  // Errors: ResourceExhausted naming the limit.
  absl::Status Admit(const std::shared_ptr<Stream>& pull,
                     const std::string& peer, Version version, Instant now,
                     StreamRegistry::Streams& evicted);
  // Records that an answer of this pull was read.
  void Progressed(const Stream* pull, Instant now);
  void Forget(const Stream* pull);

 private:
  struct Pull {
    std::shared_ptr<Stream> stream;
    std::string peer;
    Version version;
    Instant progress;
  };
  using Pulls = std::map<const Stream*, Pull>;

  bool Holds(Version version) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // By version: the last time that one of its pulls made progress.
  std::map<Version, Instant> Versions() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Evicts the version that has been without progress longest. Returns false if
  // none has stalled.
  bool EvictVersion(Instant now, StreamRegistry::Streams& evicted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool EvictPull(Instant now, StreamRegistry::Streams& evicted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Limits limits_;
  Mutex mu_;
  Pulls pulls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cohort
