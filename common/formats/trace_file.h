#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/periodic_task.h"
#include "common/timeline.h"

namespace cohort {

// Writes the timeline of a process as a file that Chrome's and Perfetto's
// viewers open: a JSON array of trace events, one a line. If the process is
// killed, the closing bracket of the array is missing, which those viewers, and
// MergeTraces, accept.
//
//   {"ph":"X","name":"forward","pid":7,"tid":7,"ts":12.5,"dur":3.25,"args":{}}
//       a span; microseconds since the file was made
//   {"ph":"M","name":"thread_name","pid":7,"tid":7,"args":{"name":"fold-0"}}
//       the name of a track; "process_name" is that of the process
//   {"ph":"M","name":"cohort_clock","pid":7,"tid":0,"args":{...}}
//       how these times relate to those of others: process ("server",
//       "shard", "worker"), run, rank (or the number of the shard; -1: none),
//       wall_us (the wall clock at time 0, microseconds since 1970),
//       server_offset_us and server_error_us (what must be added to that clock
//       to get the server's, and by how much that may be wrong; negative:
//       unknown). The last such event counts.
//   {"ph":"C","name":"dropped spans","pid":7,"tid":0,"ts":99,
//    "args":{"spans":5}}
//       spans that came faster than they could be written, in total
//
// Source: "Trace Event Format" of the Chromium project.
//
// Thread safety: safe. Its own thread writes; adding a span holds a lock only
// while a vector grows.
class TraceFile final : public Timeline {
 public:
  // Limit on spans waiting to be written; more are dropped and counted.
  static constexpr size_t kSpansMax = 1 << 16;

  // `process` is "server", "shard" or "worker". Replaces an existing file at
  // `path`. Errors: FailedPrecondition naming the path and why it cannot be
  // written.
  static absl::StatusOr<std::unique_ptr<TraceFile>> Create(
      const std::string& path, const std::string& process);
  // Writes the remaining spans and closes the array.
  ~TraceFile() override;

  void Add(Span span) override ABSL_LOCKS_EXCLUDED(mu_);

  // Identifies this process; `rank` is -1 if it has no rank, nor a number among
  // the data shards.
  void SetIdentity(const std::string& run, int32_t rank)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Sets how far the server's clock is ahead of this one, with a possible error
  // of `error`. If called several times, the offset with the smallest error is
  // used.
  void SetServerClock(absl::Duration offset, absl::Duration error)
      ABSL_LOCKS_EXCLUDED(mu_);

  // An error if the file could not be written completely. Writing stops then.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    Span span;
    int64_t track = 0;
  };
  struct Identity {
    std::string run;
    int32_t rank = -1;
    absl::Duration offset;
    // Negative: unknown.
    absl::Duration error = -absl::Seconds(1);
  };

  TraceFile(const std::string& path, const std::string& process);

  int64_t TrackLocked(const std::string& name)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Write() ABSL_LOCKS_EXCLUDED(mu_);
  void WriteIdentity(const Identity& identity);
  void WriteEvent(const std::string& event);
  std::string SpanText(const Entry& entry) const;
  std::string ProcessName(const Identity& identity) const;
  double Microseconds(Instant at) const;

  // Fixed after construction.
  const SteadyClock clock_;
  const std::string path_;
  const std::string process_;
  const int64_t pid_;
  const Instant start_;
  const absl::Time wall_start_;

  mutable Mutex mu_;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mu_);
  int64_t dropped_ ABSL_GUARDED_BY(mu_) = 0;
  Identity identity_ ABSL_GUARDED_BY(mu_);
  bool identity_changed_ ABSL_GUARDED_BY(mu_) = true;
  // By name; those of threads by number.
  std::map<std::string, int64_t> tracks_ ABSL_GUARDED_BY(mu_);
  std::vector<std::pair<int64_t, std::string>> new_tracks_ ABSL_GUARDED_BY(mu_);
  absl::Status status_ ABSL_GUARDED_BY(mu_);

  // Used by the writer's thread, and by the destructor after it.
  std::ofstream file_;
  bool first_ = true;
  int64_t dropped_told_ = 0;

  // Last: its thread uses everything above.
  std::unique_ptr<PeriodicTask> writer_;
};

}  // namespace cohort
