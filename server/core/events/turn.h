#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "server/core/events/effects.h"

namespace cohort {

// One event on its way through the state machine: its time, its effects, and
// what the parts ask of the coordinator. They never call back; the coordinator
// does what is asked, and what follows from it, before the event ends
// (Coordinator::Settle).
struct Turn {
  // A rank whose present incarnation must end, as if it were lost.
  struct Fencing {
    Rank rank;
    std::string reason;
  };
  struct End {
    RunOutcome outcome = RunOutcome::kFinished;
    std::string reason;
  };

  Instant now;
  Effects& out;
  // Pushes that are decided. The verdicts also carry the ranks' next
  // assignments, which are known only when everything has settled.
  std::vector<effect::SendVerdict> answers;
  // Those whose next assignment goes to the worker's session first: it may have
  // given up the stream of its push.
  std::vector<effect::SendVerdict> answers_after_notices;
  std::optional<Fencing> fencing;
  std::optional<End> end;
  // The present version is one to write a checkpoint of.
  bool checkpoint = false;
  // More than a message has arrived: workers may have something to do now.
  bool changed = false;
  // Those that wait do so for another rank now, or for longer.
  bool repeat_waits = false;

  // A line of the log, about a worker if it is one.
  void Log(std::string text, std::optional<WorkerProcess> worker = {}) {
    out.push_back(effect::Log{.worker = worker, .text = std::move(text)});
  }
  void Warn(std::string text, std::optional<WorkerProcess> worker = {}) {
    out.push_back(effect::Log{.severity = LogLevel::kWarning,
                              .worker = worker,
                              .text = std::move(text)});
  }
};

}  // namespace cohort
