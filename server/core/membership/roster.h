#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/worker_report.h"
#include "server/core/events/effects.h"
#include "server/core/events/requests.h"
#include "server/core/events/turn.h"
#include "server/core/ledger/run_counts.h"
#include "server/core/ledger/run_ledger.h"
#include "server/core/ledger/run_phase.h"
#include "server/core/ledger/run_settings.h"
#include "server/core/membership/rank_table.h"
#include "server/core/model/model_store.h"

namespace cohort {

// Holders of ranks: joins, incarnations, leases and losses. It answers what
// happened; what follows from it for the step is for the caller.
class Roster {
 public:
  // Reads settings, model and phase, counts in the ledger, changes the ranks.
  // All must outlive it.
  Roster(const RunSettings& settings, const ModelStore& model,
         const RunPhase& phase, RunLedger& ledger, RankTable& ranks);

  // Continues a run: who was there, and the numbers of their assignments.
  void Restore(const RunState& restored);
  Incarnation next_incarnation() const { return next_incarnation_; }

  // The first event tells when this process began to wait.
  void NoteBegin(Instant now);
  const std::optional<Instant>& begin() const { return begin_; }

  // A rank that a session holds from now on.
  struct Joined {
    Rank rank;
    // The same incarnation, back from a broken stream.
    bool back = false;
    // Another process took part under this rank before.
    bool replaces = false;
  };
  // `wait_text` says whom a pending change waits for.
  // Errors: those of Coordinator::Join.
  absl::StatusOr<Joined> Join(SessionId session, const JoinRequest& request,
                              absl::FunctionRef<std::string()> wait_text,
                              Turn& turn);
  // A heartbeat. No-op if no rank has this session.
  void Hear(SessionId session, const WorkerReport& report, Instant now);
  // The worker that sends this, whose time-outs restart.
  // Errors: FailedPrecondition (another run), InvalidArgument (no such rank),
  //   Aborted (an older incarnation, or a rank that is no longer needed).
  absl::StatusOr<Worker*> Check(const Sender& sender, Instant now);
  // The same; also FailedPrecondition if it has not registered its model.
  absl::StatusOr<Worker*> CheckRegistered(const Sender& sender, Instant now);
  // Errors: InvalidArgument (no such rank), FailedPrecondition (vacant, over).
  absl::Status CheckTaken(Rank rank) const;

  // The stream of a session ended without a Leave. No-op if no rank has it.
  void Break(SessionId session, Turn& turn);
  // Training starts now.
  void NoteStart(Instant now);
  // The worker of `rank` is to leave once it has done what it is at.
  void NoteLeaving(Rank rank, const std::string& reason, Turn& turn);
  // The cohort has become elastic: shares of a batch are those of the workers
  // that are present.
  void ForgetVacantShares();
  // The run has continued without those who are lost, and waits for them from
  // now on.
  void MissVacant(Instant now);
  // Changes the number of ranks. References to workers are invalid afterwards.
  void Resize(int32_t workers, Instant now);
  // Makes `rank` vacant.
  void Vacate(Rank rank, VacancyReason why, const std::string& reason,
              Turn& turn);

  // A rank whose time is over, and why.
  struct Overdue {
    Rank rank;
    VacancyReason why = VacancyReason::kLease;
    std::string reason;
  };
  // Leases and graces that have passed, in rank order.
  std::vector<Overdue> FindOverdue(Instant now) const;
  // Notes whether an elastic cohort has enough workers to train. Call it from
  // the start of training on, as time passes.
  void NoteSize(Instant now);
  // Since when an elastic cohort has had too few workers; absent if it has
  // enough.
  const std::optional<Instant>& too_few_since() const { return too_few_since_; }
  // Why the run cannot continue: no replacement has come in time.
  std::optional<std::string> FindAbandoned(Instant now) const;

  // Without `registered`: ranks that must be there before training starts.
  std::vector<Rank> AwaitedToStart(
      absl::FunctionRef<bool(Rank)> registered) const;
  // Until a continued run starts without the ranks that have not come back;
  // infinite where it does not.
  absl::Duration StartLeft(Instant now) const;
  // Continued from a checkpoint.
  bool resumed() const { return resumed_; }
  // "the run continues with 2 workers".
  std::string SizeText() const;

 private:
  // A worker that could be used has gone. Without others the run waits, also
  // under `continue`.
  void NoteGone(Instant now);
  absl::StatusOr<Joined> Rejoin(SessionId session, const JoinRequest& request,
                                Turn& turn);
  absl::StatusOr<Worker*> VacantFor(const JoinRequest& request,
                                    absl::FunctionRef<std::string()> wait_text,
                                    Instant now);
  void Welcome(Worker& worker, SessionId session, const JoinRequest& request,
               Turn& turn);
  // "rank 2 is no longer needed: the run continues with 2 workers".
  std::string SurplusText(Rank rank) const;
  // A change of the number of ranks is pending.
  bool ResizePending() const;

  const RunSettings& settings_;
  const ModelStore& model_;
  const RunPhase& phase_;
  RunLedger& ledger_;
  RankTable& ranks_;
  Incarnation next_incarnation_;
  std::optional<Instant> begin_;
  std::optional<Instant> too_few_since_;
  bool resumed_ = false;
  // As the checkpoint has them.
  std::set<Rank> lost_before_;
  std::set<Rank> never_registered_before_;
};

// "rank 2 is lost", or "rank 2 has left".
std::string GoneText(Rank rank, VacancyReason why);

}  // namespace cohort
