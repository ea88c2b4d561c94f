#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/byte_rope.h"
#include "common/clock.h"
#include "common/float_buffer.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "common/push.h"
#include "common/thread_pool.h"
#include "common/timeline.h"
#include "server/core/events/requests.h"
#include "server/core/model/commands.h"
#include "server/metrics/data_shard_metrics.h"
#include "server/metrics/run_trace.h"
#include "server/partitions/byte_meter.h"
#include "server/partitions/fold_job.h"
#include "server/partitions/partitions.h"
#include "server/partitions/pull_table.h"
#include "server/partitions/reserved_bytes.h"
#include "server/partitions/service_counters.h"
#include "server/streams/stream_registry.h"
#include "server/streams/streams.h"

namespace cohort {

// The way to the core, as a shard sees it: RunHost::OwnLink in the process of
// the core, else a connection (rpc/data_attach_stream.cc).
class CoordinatorStream : public Stream {
 public:
  virtual void SendGradient(const RemoteGradient& gradient) = 0;
  virtual void SendFold(const FoldReport& report) = 0;
  virtual void SendAlive() = 0;
  virtual void SendLeaving() = 0;
};

// The run that attaches, and its place for this shard.
struct ShardAttachment {
  std::string run_id;
  std::string run_name;
  // Number of shard 0's start; rises with each.
  int64_t generation = 0;
  ShardPlace place;
  int32_t workers = 1;
  // The certificate of the connection is that of the run's first server. False
  // without encryption: any client may have sent it.
  bool authenticated = false;
};

// The data shard that a reader wants to reach. Absent numbers: any.
struct ReaderBelief {
  std::string run_id;
  std::optional<int64_t> generation;
  std::optional<int32_t> shard;
};

// A gradient with its bytes.
struct ReceivedGradient {
  // Without a ticket.
  GradientArrival about;
  ByteRope bytes;
};

// Whether more of a stream is to be read.
enum class Reading { kGoesOn, kPaused };

// The partitions of a server process: their state (Partitions) with a lock,
// threads that fold, and the streams of workers. It has a model only while the
// core of the run, in this process or another one, is connected. When that
// connection is over, everything is discarded and all streams of workers end;
// the model of the newest checkpoint is installed when the core comes again.
//
// Gradients wait until the core has taken them, so all rules about pushes
// (keys, fencing, room) are applied in one place. A stream with too many
// waiting gradients is not read.
//
// Thread safety: safe.
class PartitionsHost {
 public:
  using OnRead = absl::AnyInvocable<void(absl::StatusOr<SharedSnapshot>)>;
  using OnFolded = absl::AnyInvocable<void(FoldResult)>;

  struct Options {
    // Threads for folds, unless there is `fold`.
    int32_t fold_threads = 2;
    // Gradients of one stream that may wait for the core. A stream that brings
    // more than gradients needs 1, which keeps them in order.
    int staged_max = 8;
    // Memory that the process may use; 0 if unknown.
    int64_t memory_bytes = 0;
    // Gives the memory for new weights. Null: it is the process's own.
    std::shared_ptr<FloatStorage> weights_memory;
    // Runs a fold and passes on the result later, on any thread. Every fold
    // must end, because Stop waits for it. For tests that decide when.
    std::function<void(FoldJob, OnFolded)> fold;
    // Called when shard 0 says that the run is over, and with what happened for
    // the log. On any thread.
    std::function<void()> on_end;
    std::function<void(const std::string&)> on_event;
    // Called with what is attached, before anything else of it. May be null.
    std::function<void(const ShardAttachment&)> on_attach;
    // Called with the duration of each fold, by any thread. May be null.
    std::function<void(absl::Duration)> on_folded;
    // Receives spans of folds. May be null. Must outlive the host.
    Timeline* timeline = nullptr;
  };

  // `clock` must outlive the host.
  PartitionsHost(Options options, const Clock& clock);
  ~PartitionsHost();

  // Ends all streams with `why` and admits no more.
  void CloseStreams(const absl::Status& why);
  // Ends the link, and waits for folds and other work. What is held can still
  // be read here.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  // Streams of workers.
  StreamRegistry& streams() { return streams_; }
  // Streams of shard 0.
  StreamRegistry& links() { return links_; }
  PullTable& pulls() { return pulls_; }
  // Memory for initial values that are being received.
  ReservedBytes& registrations() { return registrations_; }
  const Clock& clock() const { return clock_; }
  // Admits a stream to one of these. It is ended if no first message arrives in
  // time; `speaks` is false if the request has already arrived.
  // Errors: those of StreamRegistry::Admit.
  absl::Status Admit(StreamRegistry& to, const std::shared_ptr<Stream>& stream,
                     bool speaks);
  // Ends streams whose peer says nothing, gives turns to pulls, and gives up
  // reads that have waited for too long. With `readers`, also ends streams
  // whose peer reads nothing, and tells shard 0 that this process is alive.
  // Call it every second, with `readers` then or more seldom.
  void CheckStreams(bool readers = true) ABSL_LOCKS_EXCLUDED(mu_);

  // Runs `work` on the threads that fold. After Stop nothing is run.
  void Run(absl::AnyInvocable<void()> work) ABSL_LOCKS_EXCLUDED(mu_);
  // The same bytes, counted in its figures as long as they exist.
  ByteRope Counted(ByteRope gradient) {
    return gradient_bytes_.Count(std::move(gradient));
  }

  // Null without a timeline.
  RunTrace* trace() const { return trace_.get(); }
  ServiceCounters& counters() { return counters_; }
  DataShardFigures figures() const ABSL_LOCKS_EXCLUDED(mu_);

  // ---- the core
  // Everything goes to `link` from now on. One that is authenticated replaces
  // the link of an earlier start; any other waits until that has ended.
  // Errors: as DataShards.Attach.
  absl::Status Attach(const ShardAttachment& attachment,
                      const std::shared_ptr<CoordinatorStream>& link)
      ABSL_LOCKS_EXCLUDED(mu_);
  // A message that came over `link`. An error must end the link.
  absl::Status Install(const CoordinatorStream* link,
                       const Installation& installation)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Handle(const CoordinatorStream* link, ShardCommand command)
      ABSL_LOCKS_EXCLUDED(mu_);
  // `link` is over. No-op if it was replaced.
  void Detach(const CoordinatorStream* link) ABSL_LOCKS_EXCLUDED(mu_);
  // Tells shard 0, if it is connected, that this process is to stop. Later ones
  // are refused.
  void Leave() ABSL_LOCKS_EXCLUDED(mu_);

  // ---- workers
  // Keeps the gradient until the core has answered. kPaused: until `from`
  // is resumed, which may be before this returns.
  // Errors: Unavailable: no core; FailedPrecondition: another run.
  absl::StatusOr<Reading> Gradient(const Sender& sender, const PushKey& key,
                                   ReceivedGradient gradient,
                                   const std::shared_ptr<ExchangeStream>& from)
      ABSL_LOCKS_EXCLUDED(mu_);
  // OK if this is the shard that a reader takes it for.
  // Errors: Unavailable: no shard 0, or one of another generation;
  //   FailedPrecondition: another run or another shard.
  absl::Status Serves(const ReaderBelief& belief) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Passes the version to `done`, once it is here: the client may have heard of
  // it from shard 0 first.
  // Errors: those of Serves; OutOfRange: it is no longer held, or further ahead
  //   than shard 0 can be; Unavailable: it does not come in 30 s.
  void Read(const ReaderBelief& belief, Version version, OnRead done)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Null if the version is not here (yet).
  SharedSnapshot Held(Version version) const ABSL_LOCKS_EXCLUDED(mu_);
  // Null before there is one.
  SharedModel model() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // A gradient that the core has not answered for yet.
  struct Staged {
    HeldGradient gradient;
    std::shared_ptr<ExchangeStream> from;
  };
  // The state of one stream.
  struct Window {
    int staged = 0;
    bool paused = false;
  };
  struct Waiting {
    Version version;
    // Then it is given up.
    Instant until;
    OnRead done;
  };
  // Consequences of a change under the lock, carried out without it.
  struct Actions {
    std::vector<FoldJob> folds;
    // `resets_` when the folds were decided on.
    int64_t resets = 0;
    std::vector<absl::AnyInvocable<void()>> calls;
    // Freed last.
    std::vector<std::shared_ptr<const void>> garbage;
  };
  struct Handler;

  static absl::Status NotConnected();
  absl::Status ServesLocked(const ReaderBelief& belief) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Do(Actions actions) ABSL_LOCKS_EXCLUDED(mu_);
  // A fold from before a reset is dropped.
  void StartFold(FoldJob job, int64_t resets) ABSL_LOCKS_EXCLUDED(mu_);
  // Frees what `job` has.
  FoldResult Fold(FoldJob& job);
  // False if nothing is to be run any more.
  bool BeginWork(std::optional<int64_t> resets) ABSL_LOCKS_EXCLUDED(mu_);
  void EndWork() ABSL_LOCKS_EXCLUDED(mu_);
  // `resets`: `resets_` when the fold began.
  void Folded(int64_t resets, FoldResult result) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CheckLinkLocked(const CoordinatorStream* link) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SendLocked(const command::SendWeights& send, PartitionWeights weights,
                  Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the present link. The other ends all streams and discards the model,
  // too.
  void DisconnectLocked(const absl::Status& why, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ResetLocked(const absl::Status& why, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes a staged gradient, and resumes its stream if that was paused.
  std::optional<Staged> UnstageLocked(int64_t ticket, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The numbers of streams and pulls follow the cohort.
  void FitStreams(int32_t workers);
  // Gives up reads that have waited for too long.
  void EndOverdueReads() ABSL_LOCKS_EXCLUDED(mu_);
  // Answers reads of versions that are here now.
  void AnswerReadsLocked(Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  const Clock& clock_;

  // Synchronise themselves.
  ByteMeter gradient_bytes_;
  StreamRegistry streams_;
  StreamRegistry links_;
  PullTable pulls_;
  ReservedBytes registrations_;
  FloatBufferPool buffers_;
  ServiceCounters counters_;
  // Null without a timeline.
  const std::unique_ptr<RunTrace> trace_;

  mutable Mutex mu_;
  // Null: no core is connected.
  std::shared_ptr<CoordinatorStream> link_ ABSL_GUARDED_BY(mu_);
  // Belongs to the present link or to the last one.
  ShardAttachment attachment_ ABSL_GUARDED_BY(mu_);
  // Absent until the model is installed.
  std::optional<Partitions> node_ ABSL_GUARDED_BY(mu_);
  // Number of resets; the result of a fold from before the last one is dropped.
  int64_t resets_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t next_ticket_ ABSL_GUARDED_BY(mu_) = 1;
  std::map<int64_t, Staged> staged_ ABSL_GUARDED_BY(mu_);
  std::map<const ExchangeStream*, Window> windows_ ABSL_GUARDED_BY(mu_);
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mu_);
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool leaving_ ABSL_GUARDED_BY(mu_) = false;
  int64_t connections_ ABSL_GUARDED_BY(mu_) = 0;
  BucketCounts fold_seconds_ ABSL_GUARDED_BY(mu_) =
      DataShardFigures().fold_seconds;
  int32_t running_ ABSL_GUARDED_BY(mu_) = 0;
  CondVar work_done_;

  // Last: its threads use everything above. Null with Options::fold.
  std::unique_ptr<ThreadPool> pool_;
};

}  // namespace cohort
