#pragma once

#include <array>
#include <memory>
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

// Measures how the time of a step splits into phases. There is one phase at a
// time, that of the innermost scope. When a scope begins within another one,
// such as a rendezvous in a forward pass, the outer phase is paused. So the
// times of all phases add up to the time of the step exactly. Time outside all
// scopes counts as kWait.
//
// With a timeline, each scope becomes a span; spans of inner scopes lie within
// those of the outer ones.
//
// Thread safety: one thread at a time.
class StepPhases {
 public:
  using Facts = std::vector<std::pair<std::string, Span::Value>>;

  // `clock` and `timeline` must outlive it; `timeline` may be null.
  StepPhases(const Clock& clock, Timeline* timeline)
      : clock_(clock), timeline_(timeline) {}
  StepPhases(const StepPhases&) = delete;
  StepPhases& operator=(const StepPhases&) = delete;

  // Starts a step. Earlier times are forgotten.
  void Begin();
  // Ends the step. Returns the times of its phases; on the timeline the step is
  // a span of this name.
  PhaseTimes End(const std::string& name, Facts facts);

  bool traced() const { return timeline_ != nullptr; }

  // While it lives, time counts as `phase`. Scopes of one step nest.
  class Scope {
   public:
    Scope(StepPhases& phases, StepPhase phase);
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope();

    // Adds a fact to the span; check traced() before computing it.
    void AddFact(std::string name, Span::Value value);

   private:
    StepPhases& phases_;
    const StepPhase phase_;
    StepPhase outer_;
    Instant begin_;
    Facts facts_;
  };

  // A scope from Enter to Leave, for callers whose scopes are not those of C++.
  // The end of the step leaves all.
  void Enter(StepPhase phase);
  void Leave();
  void LeaveAll();

 private:
  // Returns the present time.
  Instant Switch(StepPhase to);

  const Clock& clock_;
  Timeline* const timeline_;

  PhaseTimes times_ = {};
  StepPhase phase_ = StepPhase::kWait;
  Instant begin_;
  // When `phase_` began.
  Instant since_;
  // Scopes that were entered, the innermost last.
  std::vector<std::unique_ptr<Scope>> entered_;
};

}  // namespace cohort
