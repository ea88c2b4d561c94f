#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/periodic_task.h"
#include "server/core/run_state.h"
#include "server/main/server_options.h"
#include "server/metrics/run_stats.h"
#include "server/metrics/shard_stats.h"
#include "server/rpc/data_shard_client.h"
#include "server/run/run_host.h"

namespace cohort {

// Shard 0's connections to the data shards of its run, if there are any, and
// what is known of each. Data shards count from 1.
// Thread safety: safe, except that Attach comes first and End last.
class DataShards {
 public:
  // On gRPC's threads; must not block.
  struct Reactions {
    // It stops once its connection is over.
    std::function<void(int32_t shard)> on_leaving;
    // It is lost, and page and events have it.
    std::function<void(const absl::Status& why)> on_lost;
  };

  // `options` has the run's identity. All references must outlive it.
  DataShards(const ServerOptions& options, const ServerSecurity& security,
             RunStats& stats, Reactions reactions);
  ~DataShards();

  // The ways to them, from shard 1 on.
  std::vector<PartitionsLink*> links() const;
  // Takes what they send. Comes before Attach.
  void SendTo(RunHost& run) { run_ = &run; }
  // Null if the run has no data shards.
  const std::shared_ptr<ShardStats>& stats() const { return shard_stats_; }

  // Waits until all are there. `on_wait` is called with what it waits for, and
  // `give_up` at least every few seconds; both on several threads, and they
  // must not block.
  // Errors: those of DataShardClient::Attach.
  absl::Status Attach(const std::function<void(const std::string&)>& on_wait,
                      const std::function<bool()>& give_up);
  // Ends the connection to one that leaves, as if it was lost.
  void Release(int32_t shard) { clients_[Index(shard)]->Release(); }
  // Why one that leaves is lost.
  absl::Status LeavingBecause(int32_t shard) const;
  // For page, metrics and events.
  void NoteLost(int32_t shard, const absl::Status& why);

  // All partitions of a version that need not be fetched: the restored one,
  // until training starts, and the last one. Null: there is none.
  void KeepWhole(SharedSnapshot whole) ABSL_LOCKS_EXCLUDED(mu_);
  // `state` with the partitions of all shards. May block.
  // Errors: Unavailable: a data shard is gone, or has no model yet.
  absl::StatusOr<RunState> WithAllPartitions(RunState state)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Classifies errors of an operator's request. FailedPrecondition: a wrong
  // flag, or a data shard is away and named; Internal: all others, which are
  // ours.
  absl::Status ForOperator(const absl::Status& status) const;

  // Disconnects from all. If the run is over, they are notified first; with
  // `some_missing`, those that are not there are named in the log.
  void End(bool run_is_over, bool some_missing);

 private:
  static size_t Index(int32_t shard) { return static_cast<size_t>(shard) - 1; }

  void Connect(const std::vector<std::string>& addresses);
  absl::Status AttachOne(int32_t shard,
                         const std::function<void(const std::string&)>& on_wait,
                         const std::function<bool()>& give_up);
  std::string NameOf(int32_t shard) const;
  // All partitions of `version`, if they are here.
  SharedSnapshot WholeHere(Version version) const ABSL_LOCKS_EXCLUDED(mu_);
  // The run was over before this process began: connects to those that are
  // still there.
  void ConnectToEnded();

  // Fixed after construction.
  const ServerOptions& options_;
  const ServerSecurity& security_;
  const Reactions reactions_;
  RunHost* run_ = nullptr;
  const SteadyClock clock_;

  // Synchronise themselves.
  RunStats& stats_;
  std::shared_ptr<ShardStats> shard_stats_;
  // All are there, and are being given the model. Set before anything can ask
  // for their partitions.
  std::atomic<bool> attached_ = false;

  mutable Mutex mu_;
  SharedSnapshot whole_ ABSL_GUARDED_BY(mu_);

  std::vector<std::unique_ptr<DataShardClient>> clients_;
  // Notices data shards that hang. Null until all are there.
  std::unique_ptr<PeriodicTask> watch_;
};

}  // namespace cohort
