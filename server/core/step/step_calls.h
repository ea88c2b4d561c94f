#pragma once

#include <set>
#include <string>

#include "absl/status/status.h"
#include "common/ids.h"
#include "common/moments.h"
#include "server/core/events/requests.h"
#include "server/core/events/turn.h"
#include "server/core/membership/rank_table.h"
#include "server/core/statistics/rendezvous.h"
#include "server/core/step/round.h"
#include "server/core/step/run_parts.h"

namespace cohort {

// What the batch-norm calls of an attempt lead to.
enum class CallsAction {
  kContinue,
  // The attempt ends, and is repeated.
  kRepeat,
  // The same; and the process of `rank` contradicts itself and is fenced.
  kFence,
  // The run ends.
  kEnd,
};
struct CallsDecision {
  CallsAction action = CallsAction::kContinue;
  std::string why;
  Rank rank;
};

// The batch-norm calls of synchronous steps: it takes the contributions to the
// rendezvous of a round, answers them, and compares what the members have
// called. It decides what follows for the attempt; the driver carries that out.
class StepCalls {
 public:
  // `parts` must outlive it.
  explicit StepCalls(RunParts& parts) : parts_(parts) {}

  // The contribution of a rank to the step of `round`.
  // Errors: those of CheckReduce.
  absl::Status Take(Round& round, Worker& worker, MomentsMessage message,
                    Turn& turn);
  // Sends what an event of the rendezvous of `key` has led to.
  void Answer(Round& round, const ReduceKey& key,
              RendezvousTable::Outcome outcome, Turn& turn);
  // The push of `rank` is closed.
  void NoteClosing(Round& round, Rank rank);
  // Completes rendezvous whose other members cannot come, and compares the
  // calls of all members once their pushes are closed.
  CallsDecision Settle(Round& round, Turn& turn);
  // A push of `rank` is part of a step.
  void NoteStep(Rank rank) { fenced_.erase(rank); }

 private:
  CallsDecision DecideFault(const Round::Fault& fault);
  CallsDecision CompleteWithoutAbsent(Round& round, Turn& turn);
  // Repeats a doomed attempt with the order that it has taught, or ends the
  // run if it has taught nothing.
  CallsDecision DecideDoomed(const Round& round);

  RunParts& parts_;
  // Ranks that were fenced because they contradicted themselves, and have not
  // made a step since.
  std::set<Rank> fenced_;
};

}  // namespace cohort
