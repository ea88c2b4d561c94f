#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "common/assignment.h"
#include "common/ids.h"
#include "server/core/coordinator.h"
#include "server/core/events/effects.h"
#include "server/partitions/fold_job.h"
#include "tests/sim/scenario.h"
#include "tests/sim/sim_model.h"

namespace cohort::sim {

// Observes the state machine from outside. The gradients themselves show whose
// contributions went into a commit.
class Checker {
 public:
  explicit Checker(const Scenario& scenario);

  // Takes the effects of one event of the state machine.
  void OnEffects(const Effects& effects, const Coordinator& core);
  // Who folds: a shard, of the run's server process number `generation`.
  struct Folder {
    int32_t shard = 0;
    int32_t generation = 0;
  };
  // A shard begins a fold.
  void OnFold(const Folder& folder, const FoldJob& fold);
  // A worker reads this version.
  void OnRead(const ModelVersion& snapshot);
  // A worker got this server's verdict that its push counts, and takes its next
  // batch.
  void OnCounted(Rank rank, int32_t server_incarnation,
                 const IndexRange& batch);
  // A worker holds the weights of `version`, and this state beside them.
  void OnHeld(Rank rank, Version version, const FrontEndState& state);
  void AfterEvent(const Coordinator& core);
  // The state is taken for a checkpoint that the state machine has not asked
  // for.
  void OnStateTaken() { asked_checkpoints_.push_back(now_); }
  // The oldest of the checkpoints that were asked for is begun, or the newest
  // is left out because another one is in progress.
  void OnCheckpointBegun(bool begun);
  // The one that was begun is complete.
  void OnCheckpointWritten(RunState state);
  // The weights of all partitions at the end of the run; null if there are
  // none.
  void OnResults(SharedSnapshot snapshot);
  // The server is gone; the next one continues from the last checkpoint.
  void OnServerGone();

  // Compares the server's counters with the events since its start.
  void CheckCounts(const StatusView& status);
  // Once the run is over, the clock must be at the end of the data.
  void CheckClock(const StatusView& status);

  // The first failure is kept.
  void Fail(const std::string& what);
  const std::optional<std::string>& failure() const { return failure_; }

  // The last checkpoint, or null.
  const RunState* checkpoint() const {
    return checkpoint_.has_value() ? &*checkpoint_ : nullptr;
  }
  const std::optional<effect::RunEnded>& ended() const { return ended_; }
  const SharedSnapshot& results() const { return results_; }
  // The run is over, and its results cannot be lost any more.
  bool concluded() const { return concluded_; }
  // The run was over before, but its results were lost with a data shard.
  bool ended_before() const { return ended_before_; }
  int64_t commits() const { return commits_; }
  int64_t resizes() const { return resizes_; }
  // A server has begun to train without some of its workers.
  bool started_short() const { return started_short_; }
  // The rank whose initial values were requested last.
  const std::optional<Rank>& asked() const { return asked_; }

 private:
  using Key = std::tuple<Rank, Sequence, Attempt>;
  struct Contribution {
    Key key;
    int64_t epoch = 0;
    std::vector<IndexRange> ranges;
    std::optional<std::string> front_end_state;

    friend bool operator==(const Contribution&, const Contribution&) = default;
  };
  // State that belongs to the versions up to the present one. A restart returns
  // to the checkpoint's state.
  struct Lineage {
    Version version;
    std::set<Key> applied;
    // Pushes that were answered as dropped.
    std::set<Key> dropped;
    // By epoch: the samples that were used.
    std::map<int64_t, std::vector<bool>> samples;
    // The samples of own data that were used.
    std::set<int64_t> own_samples;
    // By version; absent: none was sent before.
    std::map<Version, std::optional<std::string>> states = {
        {Version(), std::nullopt}};
  };

  void On(const effect::RegisterAnswered& answered);
  void On(const command::Commit& commit) { transaction_ = commit.transaction; }
  void On(const effect::Committed& committed);
  void On(const effect::PolicyChanged& changed);
  void On(const effect::SendVerdict& sent);
  void On(const effect::StepAborted& aborted) {
    aborted_.insert({aborted.step, aborted.attempt});
  }
  // Whether a push may be dropped whatever the policy.
  bool IsOver(const effect::SendVerdict& sent) const;
  void On(const effect::WriteCheckpoint& write);
  void On(const effect::RunEnded& ended);
  void On(const effect::Log& log) {
    started_short_ |= absl::StrContains(log.text, "without the others");
  }
  template <typename Other>
  void On(const Other&) {}

  void Cover(const Contribution& contribution);
  void CheckStepSamples(const CommitRecord& record);
  void CoverRange(const Contribution& contribution, const IndexRange& range);
  void CoverOwn(const Contribution& contribution, int64_t sample);
  // The version that was just made has the state of its lowest rank.
  void NoteState(const Contribution& lowest);
  void CheckState(const std::string& where, const ModelVersion& snapshot);
  // If true, every version is one step of all states further than the version
  // before.
  bool StepsAreVersions() const;
  void CheckLead(Rank rank);
  void NotePolicy();
  bool Is(const std::string& setting, const std::string& value) const {
    return settings_.at(setting) == value;
  }
  int64_t Number(const std::string& setting) const;
  // With the size in force.
  CoordinatorOptions Size() const;
  void CheckAllCovered();
  void CheckRoom(const Coordinator& core);

  // Folds of all partitions that train, by partition.
  using Folds = std::map<int32_t, std::vector<Contribution>>;

  void CheckFolds(const CommitRecord& record, const Folds& folds);
  bool IsShared() const { return run_.coordinator.shards > 1; }

  const Scenario& scenario_;
  const RunSpec& run_;
  const size_t trainable_;
  // The settings in force.
  SettingValues settings_;
  // A policy that drops pushes was in force: not every sample is used.
  bool may_drop_ = false;
  // For `bounded`: commits by rank since the policy changed or the server
  // started.
  std::map<Rank, int64_t> finished_;
  // Ranks may have joined whose count does not start at 0.
  bool lead_unknown_ = false;
  // A rank that never took part does not count at all, until a restart.
  bool resized_ = false;
  // Pushes applied since the server's last start.
  int64_t applied_ = 0;
  std::optional<std::string> failure_;
  Lineage now_;
  Lineage at_checkpoint_;
  std::optional<RunState> checkpoint_;
  // Checkpoints that were asked for and not begun yet; the one that was begun.
  std::deque<Lineage> asked_checkpoints_;
  std::optional<Lineage> begun_checkpoint_;
  std::optional<effect::RunEnded> ended_;
  SharedSnapshot results_;
  bool concluded_ = false;
  bool ended_before_ = false;
  // The run is over, and a new server will say so again.
  bool ends_again_ = false;
  // By shard: the newest transaction of which it has begun a fold.
  std::map<int32_t, int64_t> newest_fold_;
  // By transaction, from the one that was committed last on.
  std::map<int64_t, Folds> folds_;
  // That of the last commit.
  int64_t transaction_ = 0;
  // Pushes answered since the server's last start.
  std::set<Key> answered_;
  std::set<std::pair<Version, Attempt>> aborted_;
  int32_t server_incarnation_ = 1;
  int64_t commits_ = 0;
  int64_t resizes_ = 0;
  bool started_short_ = false;
  std::optional<Rank> asked_;
};

}  // namespace cohort::sim
