#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/step_phase.h"
#include "common/timeline.h"

namespace cohort {

// Time by phase.
using PhaseTimes = std::array<absl::Duration, kStepPhases>;

// Tells into which phases the time of a step goes. There is one phase at a
// time: within a scope it is that of the scope, and when another scope begins
// in it, as a rendezvous does in a forward pass, the outer phase stands still
// meanwhile. So the times of all phases are the time of the step, exactly. What
// is in no scope counts as kWait.
//
// With a timeline, each scope is a span of it; spans of inner scopes lie within
// those of the outer ones.
//
// Thread safety: one thread at a time.
class StepPhases {
 public:
  using Facts = std::vector<std::pair<std::string, Span::Value>>;

  // `clock` and `timeline` (null: none) must outlive it.
  StepPhases(const Clock& clock, Timeline* timeline)
      : clock_(clock), timeline_(timeline) {}
  StepPhases(const StepPhases&) = delete;
  StepPhases& operator=(const StepPhases&) = delete;

  // A step begins now. What came before is forgotten.
  void Begin();
  // It is over. Returns the times of its phases; on the timeline it is a span
  // of this name.
  PhaseTimes End(const std::string& name, Facts facts);

  bool traced() const { return timeline_ != nullptr; }

  // While it lives, time counts as `phase`. Scopes of one step nest.
  class Scope {
   public:
    Scope(StepPhases& phases, StepPhase phase);
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope();

    // What the span says besides; ask traced() before making it.
    void AddFact(std::string name, Span::Value value);

   private:
    StepPhases& phases_;
    const StepPhase phase_;
    StepPhase outer_;
    Instant begin_;
    Facts facts_;
  };

 private:
  // Returns the time.
  Instant Switch(StepPhase to);

  const Clock& clock_;
  Timeline* const timeline_;

  PhaseTimes times_ = {};
  StepPhase phase_ = StepPhase::kWait;
  Instant begin_;
  // Since when `phase_` holds.
  Instant since_;
};

}  // namespace cohort
