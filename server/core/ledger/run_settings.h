#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/ids.h"
#include "server/core/events/effects.h"
#include "server/core/events/requests.h"
#include "server/core/settings/options.h"
#include "server/core/settings/settings.h"

namespace cohort {

// The settings of a run: those in force, those that were requested, and the
// history of their changes. It does not decide when a change takes effect.
class RunSettings {
 public:
  // A request that is pending until nothing is in flight.
  struct Pending {
    CoordinatorOptions target;
    // From the newest request.
    ChangeNote note;
  };

  // `options` must be valid. Pass `restored` to continue its history; flags
  // that differ from its settings become an entry of it. AppendToHistory adds
  // to the text of that entry.
  RunSettings(const CoordinatorOptions& options, const RunState* restored);

  const CoordinatorOptions& options() const { return options_; }
  // Resolved: nothing in it is `auto`.
  const PolicyOptions& policy() const { return policy_; }
  bool sync() const { return policy_.aggregation == AggregationKind::kSync; }
  bool bounded() const {
    return policy_.aggregation == AggregationKind::kBounded;
  }
  bool global() const {
    return policy_.normalization == NormalizationKind::kGlobal;
  }
  bool waits_for_lost() const {
    return options_.on_worker_loss == OnWorkerLoss::kWait;
  }
  bool elastic() const { return options_.elastic(); }
  // Training neither starts nor continues with fewer; 0: the size is fixed.
  int32_t workers_min() const { return options_.workers_min; }
  // Members may meet in rendezvous, under this policy or an earlier one whose
  // messages may still be in flight.
  bool MayHaveRendezvous() const {
    return policy_epoch_ > 1 || (sync() && global());
  }
  // Whether the run had `rank` at some time.
  bool HadRank(Rank rank) const;

  const std::string& run_id() const { return options_.run_id; }
  // Rises by one with each change that takes effect.
  int64_t policy_epoch() const { return policy_epoch_; }
  const std::vector<PolicyRecord>& history() const { return history_; }
  const std::optional<Pending>& pending() const { return pending_; }
  // What the pending request changes; empty if there is none.
  SettingValues pending_changes() const;

  // The settings that are pending, or in force, with `values` set.
  // Errors: InvalidArgument naming the setting.
  absl::StatusOr<CoordinatorOptions> TargetOf(
      const SettingValues& values) const;
  // The effect of requesting `values`, compared with what is in force. `target`
  // is TargetOf(values).
  struct Outlook {
    bool changes = false;
    // Some of the values take effect at a version, not at once.
    bool at_version = false;
    // With earlier requests that it replaces.
    std::string text;
  };
  Outlook OutlookOn(const SettingValues& values,
                    const CoordinatorOptions& target) const;
  // What a request for `values` has led to: those of them that are pending,
  // under the next policy epoch; or else those in the newest entry with any.
  AwaitedChange Awaited(const SettingValues& values) const;
  // Puts in force what acts at once. A change of the size takes the reaction to
  // losses with it at its version: one that fits only the new size must not be
  // in force before.
  void AdoptAtOnce(const CoordinatorOptions& target);
  // Makes `target` the pending request; none if it is what is in force.
  void Request(CoordinatorOptions target, const ChangeNote& note);
  // Before the run has a model: takes the optimizer of `target`, into a pending
  // request too. The caller records it.
  void AdoptOptimizer(const CoordinatorOptions& target);
  // Puts the pending request in force. There must be one.
  void AdoptPending();
  // The next planned change that is due at `version`, which is then no longer
  // planned; null: none is.
  const PlannedChange* TakePlanned(Version version);

  // Enters a change that has taken effect into the history, under a new policy
  // epoch.
  const PolicyRecord& Record(SettingValues changed, std::string text,
                             const ChangeNote& note, Version version,
                             int64_t samples);
  // Before anything is changed: adds to the text of the newest entry.
  void AppendToHistory(const std::string& text) {
    history_.back().text += text;
  }

 private:
  CoordinatorOptions options_;
  PolicyOptions policy_;
  int64_t policy_epoch_ = 1;
  std::optional<Pending> pending_;
  size_t planned_next_ = 0;
  std::vector<PolicyRecord> history_;
};

}  // namespace cohort
