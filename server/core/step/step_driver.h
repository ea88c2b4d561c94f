#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/assignment.h"
#include "common/ids.h"
#include "common/moments.h"
#include "common/push.h"
#include "server/core/events/requests.h"
#include "server/core/events/turn.h"
#include "server/core/ledger/data_cursor.h"
#include "server/core/membership/rank_table.h"
#include "server/core/optimizer/fold_report.h"
#include "server/core/step/arrived_push.h"
#include "server/core/step/pending_commit.h"
#include "server/core/step/run_parts.h"

namespace cohort {

// What a rank means to the others at this moment.
struct Standing {
  // They cannot continue before it does something.
  bool blocks_others = false;
  // It has done what it can of its assignment.
  bool waits_for_others = false;
  // It is idle for the sake of others.
  bool is_blocked = false;
  // The rendezvous that it waits in, valid until the next event; null if there
  // is none.
  const CallPlace* waits_in = nullptr;
};

// How pushes become commits: in rounds of all members (SyncRounds), or one by
// one as they arrive (ArrivalQueue). It owns the pushes in progress. A change
// of policy replaces it while nothing is in flight.
//
// A push here belongs to the outstanding training assignment of its rank: the
// coordinator answers older ones. Messages are checked for what does not depend
// on the driver (push_checks.h). No method gives out assignments or ends the
// run; that is asked of the coordinator through the turn.
class StepDriver {
 public:
  virtual ~StepDriver() = default;

  // ---- messages of one push
  absl::Status Open(Worker& worker, const PushKey& key,
                    const PushOpening& opening, Turn& turn);
  // kTaken: command Take comes before all that follows from it.
  absl::StatusOr<Admission> Gradient(Worker& worker, const PushKey& key,
                                     const GradientArrival& gradient,
                                     Turn& turn);
  virtual absl::Status Close(Worker& worker, const PushKey& key,
                             PushClosing closing, Turn& turn) = 0;
  virtual absl::Status Reduce(Worker& worker, MomentsMessage message,
                              Turn& turn) = 0;
  // The room of its gradients is free. Reports on transactions that were given
  // up come too.
  virtual void Folded(FoldReport report, Turn& turn) = 0;
  // The commit in progress; null if there is none.
  virtual const PendingCommit* commit() const = 0;
  // Jobs of the pool have ended.
  virtual void MomentsFolded(MomentsFold&&, Turn&) {}
  virtual void StatisticsUpdated(StatisticsUpdate&&, Turn&) {}
  // This update of the outstanding push of `worker`, or a later one, has been
  // opened.
  bool HasOpened(const Worker& worker, const PushKey& key) const {
    const ArrivedPush* const push = PushOf(worker.rank);
    return push != nullptr && (key.update < update() ||
                               (push->opened() && key.update == update()));
  }
  // A complete push of this key waits for its turn.
  virtual bool IsQueued(Rank, const PushKey&) const { return false; }

  // ---- what comes next
  // Begins or commits what it can. Returns true if anything changed; call it
  // again until it returns false.
  virtual bool Advance(Turn& turn) = 0;
  // The work of `worker` now: attempt, members, epoch and range of a
  // training assignment.
  virtual std::optional<Assignment> Next(Worker& worker) = 0;
  // `worker` is to do its outstanding assignment, which it may have been given
  // before.
  virtual bool GivesAgain(const Worker&) const { return true; }
  // Others compute with the rank and would wait for it in a rendezvous.
  virtual bool BlocksIssuedStep(Rank) const { return false; }

  // ---- ranks
  // A session holds the rank of `worker` now: a new incarnation, or the same
  // one after a broken stream. It repeats what is outstanding. `fresh`: its
  // place was not kept, so it starts to count assignments.
  virtual void Welcome(Worker&, bool /*fresh*/, Turn&) {}
  // `rank` is lost. `waits`: what it was given stays for its replacement.
  virtual void RankLost(Rank rank, bool waits, const std::string& why,
                        Turn& turn) = 0;

  // ---- time
  // Notices what takes too long, and resumes paused streams.
  virtual void Tick(Turn& turn) = 0;

  // ---- the end
  // True if no work under the settings in force is in flight.
  virtual bool Quiet() const = 0;
  // No more steps follow, and the last has ended.
  bool TrainingDone() const {
    return (parts_.phase.draining() || NoMoreSteps()) && Idle();
  }
  // The run is over: rendezvous are given up, and closed pushes that were not
  // applied are dropped.
  virtual void GiveUp(Turn& turn) = 0;

  // ---- for people and checkpoints
  // Ranges that were handed out and are not in the present version.
  virtual std::vector<DataCursor::Piece> Undecided() const { return {}; }
  // Attempt of the step in progress, if there is one.
  virtual std::optional<Attempt> attempt() const { return std::nullopt; }
  virtual Standing StandingOf(const Worker& worker) const = 0;
  // Ranks that the next commit waits for.
  virtual std::vector<Rank> WaitedFor() const = 0;
  // Ranks that `worker`, which is blocked, waits for.
  virtual std::vector<Rank> BlockedBy(const Worker& worker) const = 0;

 protected:
  explicit StepDriver(RunParts& parts) : parts_(parts) {}

  // The push of `rank`, as far as it has come; null if none is in progress.
  virtual const ArrivedPush* PushOf(Rank rank) const = 0;
  // The number of the update in progress.
  virtual int32_t update() const { return 0; }
  // Whether the opening belongs to the update in progress; see step_updates.h.
  virtual absl::StatusOr<bool> TakesUpdate(Rank rank, const PushKey& key,
                                           const PushOpening& opening) = 0;
  // A rank repeats an earlier update, whatever has come of it since.
  virtual void NoteBehind(Rank) {}
  // The push will change nothing: its gradients are taken and discarded.
  virtual bool Discards() const { return false; }
  // Enters a message into it.
  virtual ArrivedPush::Arrival EnterOpening(Worker& worker, const PushKey& key,
                                            const PushOpening& opening) = 0;
  virtual ArrivedPush::Arrival EnterGradient(
      Rank rank, const GradientArrival& gradient) = 0;
  // Called after a message was entered.
  virtual void Opened(Turn&) {}
  virtual void TookGradient(Worker& worker, int32_t partition, bool fresh,
                            Turn& turn) = 0;
  // Pushes are let in whole; otherwise message by message.
  virtual bool ReservesPushes() const = 0;
  // There is room for so many bytes of `rank`.
  virtual bool MayTake(Rank rank, int64_t bytes) const = 0;
  // Resumes streams for whose message there is room now.
  void ResumePaused(Turn& turn);
  // True if no push is in progress and none is to begin.
  virtual bool Idle() const = 0;

  // The data or the number of steps of the run is used up, by the present
  // version and `under_way` pushes that become one version each.
  bool NoMoreSteps(int64_t under_way = 0) const {
    const int64_t steps_max = parts_.settings.options().max_steps;
    return parts_.ledger.cursor.exhausted() ||
           (steps_max > 0 &&
            parts_.model.version().value() + under_way >= steps_max);
  }

  // Ranks that can take part in a step, ascending.
  std::vector<Rank> Candidates() const;
  // Their batch sizes.
  std::vector<int64_t> BatchSizesOf(const std::vector<Rank>& ranks) const;

  RunParts& parts_;
};

// The one that the settings in force ask for.
std::unique_ptr<StepDriver> MakeStepDriver(RunParts& parts);

}  // namespace cohort
