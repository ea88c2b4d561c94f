#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/permutation.h"
#include "tests/sim/checker.h"
#include "tests/sim/network.h"
#include "tests/sim/scenario.h"
#include "tests/sim/scheduler.h"
#include "tests/sim/shard_network.h"
#include "tests/sim/sim_data_shard.h"
#include "tests/sim/sim_server.h"
#include "tests/sim/sim_worker.h"

namespace cohort::sim {

struct Outcome {
  // Empty if every invariant held and the run finished.
  std::string failure;
  SharedSnapshot snapshot;
  int64_t events = 0;
  // Virtual time.
  absl::Duration elapsed;
  int64_t commits = 0;
  // Over all starts of the server.
  int64_t workers_lost = 0;
  int64_t steps_aborted = 0;
  int64_t duplicates = 0;
  int64_t replay_mismatches = 0;
  int64_t restarts = 0;
  // Restarts because a data shard was lost, or left.
  int64_t shards_lost = 0;
  // Of these, the shard left after a checkpoint.
  int64_t shards_left = 0;
  // Restarts because the server was asked to stop.
  int64_t stops = 0;
  int64_t dropped = 0;
  int64_t policy_changes = 0;
  // Workers that reported other batch-norm calls than they had made.
  int64_t fenced = 0;
  // Attempts that were repeated because of the order of calls.
  int64_t repeated_for_order = 0;
  // Changes of the number of workers.
  int64_t resizes = 0;
  // A server has begun to train without some of its workers.
  bool started_short = false;
  // All processes of workers.
  int64_t processes = 0;
  // Batches of own data whose verdict was lost with the server.
  int64_t batches_given_up = 0;
  // Pushes of own data whose verdict came only after their worker asked again.
  int64_t late_verdicts = 0;
  // The rank whose initial values the run began with.
  std::optional<Rank> model_of;
};

// A whole cohort in one thread: a server, its workers and the network between
// them, in virtual time. The same scenario always gives the same outcome.
class Simulation {
 public:
  explicit Simulation(const Scenario& scenario);

  Outcome Run();

 private:
  World MakeWorld() {
    return {scheduler_, random_, network_, shard_network_, checker_, scenario_};
  }
  void StartServer();
  void StopServer();
  bool IsServing() const { return server_ != nullptr && server_->is_serving(); }
  // The process of shard 0 ends a while later, and is started again.
  void OnServerStopped(bool continues);
  void OnMoment(Moment moment);
  void StartShard(int32_t index);
  void KillShard(int32_t index, absl::Duration lasts);
  // Stops a data shard that was asked to once it is no longer connected, or
  // `until` has passed.
  void AwaitLeft(int32_t index, int64_t process, Instant until,
                 absl::Duration lasts);
  void StartWorker(Rank rank);
  void Tick();
  // Starts a worker for each rank that has none, as an operator would.
  void StartMissing();
  void Inflict(const Fault& fault);
  void InflictOn(SimWorker& worker, const Fault& fault);
  void Freeze(SimWorker& worker, const Fault& fault);
  void Replace(SimWorker& worker, absl::Duration delay);
  // Describes the server's state in words.
  std::string StateText() const;
  void Count();
  // Lets the notices of the end arrive, and checks that they do.
  void Drain();

  const Scenario scenario_;
  Scheduler scheduler_;
  SplitMix64 random_;
  Network network_;
  ShardNetwork shard_network_;
  Checker checker_;
  int32_t incarnation_ = 0;
  std::map<Moment, int32_t> moments_;
  // Until a server that was asked to stop comes back.
  absl::Duration stop_lasts_;
  std::unique_ptr<SimServer> server_;
  int64_t shard_processes_ = 0;
  // From shard 1 on; null: it is gone.
  std::vector<std::unique_ptr<SimDataShard>> data_shards_;
  // All processes so far; the last of a rank is the current one.
  std::vector<std::unique_ptr<SimWorker>> processes_;
  std::vector<SimWorker*> newest_;
  Outcome outcome_;
};

// Bitwise differences between two versions of the model; empty if none.
std::string Differences(const ModelSnapshot& seen, const ModelSnapshot& wanted);

}  // namespace cohort::sim
