#include "worker/telemetry/step_phases.h"

namespace cohort {

void StepPhases::Begin() {
  times_ = {};
  phase_ = StepPhase::kWait;
  begin_ = clock_.Now();
  since_ = begin_;
}

PhaseTimes StepPhases::End(const std::string& name, Facts facts) {
  LeaveAll();
  const Instant end = Switch(StepPhase::kWait);
  if (timeline_ != nullptr) {
    timeline_->Add(
        {.name = name, .begin = begin_, .end = end, .facts = std::move(facts)});
  }
  return times_;
}

Instant StepPhases::Switch(StepPhase to) {
  const Instant now = clock_.Now();
  times_[static_cast<size_t>(phase_)] += now - since_;
  since_ = now;
  phase_ = to;
  return now;
}

void StepPhases::Enter(StepPhase phase) {
  entered_.push_back(std::make_unique<Scope>(*this, phase));
}

void StepPhases::Leave() {
  if (!entered_.empty()) entered_.pop_back();
}

void StepPhases::LeaveAll() {
  // Inner ones first.
  while (!entered_.empty()) Leave();
}

StepPhases::Scope::Scope(StepPhases& phases, StepPhase phase)
    : phases_(phases), phase_(phase), outer_(phases.phase_) {
  begin_ = phases_.Switch(phase);
}

StepPhases::Scope::~Scope() {
  const Instant end = phases_.Switch(outer_);
  if (phases_.timeline_ == nullptr) return;
  phases_.timeline_->Add({.name = std::string(StepPhaseName(phase_)),
                          .begin = begin_,
                          .end = end,
                          .facts = std::move(facts_)});
}

void StepPhases::Scope::AddFact(std::string name, Span::Value value) {
  facts_.emplace_back(std::move(name), std::move(value));
}

}  // namespace cohort
