#include "worker/telemetry/step_phases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace cohort {
namespace {

using ::testing::ElementsAre;

class HandClock final : public Clock {
 public:
  Instant Now() const override { return now; }
  void Advance(int64_t ms) { now += absl::Milliseconds(ms); }
  Instant now = absl::Hours(1);
};

class Recorded final : public Timeline {
 public:
  void Add(Span span) override { spans.push_back(std::move(span)); }
  std::vector<Span> spans;
};

int64_t Ms(const PhaseTimes& times, StepPhase phase) {
  return absl::ToInt64Milliseconds(times[static_cast<size_t>(phase)]);
}

// A forward pass of 10 ms that includes 4 ms of waiting, during which the outer
// phase is paused.
TEST(StepPhasesTest, PhasesDoNotOverlapAndAddUpToTheStep) {
  HandClock clock;
  Recorded timeline;
  StepPhases phases(clock, &timeline);
  clock.Advance(100);
  phases.Begin();
  {
    const StepPhases::Scope data(phases, StepPhase::kData);
    clock.Advance(5);
  }
  clock.Advance(1);
  {
    const StepPhases::Scope forward(phases, StepPhase::kForward);
    clock.Advance(3);
    {
      StepPhases::Scope rendezvous(phases, StepPhase::kRendezvous);
      rendezvous.AddFact("layer", "bn1");
      clock.Advance(4);
    }
    clock.Advance(3);
  }
  const PhaseTimes times = phases.End("step", {{"version", int64_t{7}}});
  EXPECT_EQ(Ms(times, StepPhase::kData), 5);
  EXPECT_EQ(Ms(times, StepPhase::kForward), 6);
  EXPECT_EQ(Ms(times, StepPhase::kRendezvous), 4);
  // Time outside all scopes.
  EXPECT_EQ(Ms(times, StepPhase::kWait), 1);
  EXPECT_EQ(std::accumulate(times.begin(), times.end(), absl::ZeroDuration()),
            absl::Milliseconds(16));

  std::vector<std::string> names;
  for (const Span& span : timeline.spans) names.push_back(span.name);
  EXPECT_THAT(names, ElementsAre("data", "rendezvous", "forward", "step"));
  const Span& rendezvous = timeline.spans[1];
  const Span& forward = timeline.spans[2];
  const Span& step = timeline.spans[3];
  EXPECT_EQ(forward.end - forward.begin, absl::Milliseconds(10));
  EXPECT_GE(rendezvous.begin, forward.begin);
  EXPECT_LE(rendezvous.end, forward.end);
  EXPECT_EQ(step.end - step.begin, absl::Milliseconds(16));
  ASSERT_EQ(rendezvous.facts.size(), 1u);
  EXPECT_EQ(std::get<std::string>(rendezvous.facts[0].second), "bn1");
}

TEST(StepPhasesTest, ASecondStepStartsFromNothing) {
  HandClock clock;
  StepPhases phases(clock, nullptr);
  phases.Begin();
  {
    const StepPhases::Scope push(phases, StepPhase::kPush);
    clock.Advance(9);
  }
  // A step that was given up: its times are not read.
  phases.Begin();
  clock.Advance(2);
  const PhaseTimes times = phases.End("step", {});
  EXPECT_EQ(Ms(times, StepPhase::kPush), 0);
  EXPECT_EQ(Ms(times, StepPhase::kWait), 2);
}

// An exception of autograd leaves through the scopes.
TEST(StepPhasesTest, ScopesEndWhenAPassIsInterrupted) {
  HandClock clock;
  StepPhases phases(clock, nullptr);
  phases.Begin();
  try {
    const StepPhases::Scope backward(phases, StepPhase::kBackward);
    const StepPhases::Scope rendezvous(phases, StepPhase::kRendezvous);
    clock.Advance(3);
    throw std::runtime_error("interrupted");
  } catch (const std::runtime_error&) {
    clock.Advance(4);
  }
  const PhaseTimes times = phases.End("step", {});
  EXPECT_EQ(Ms(times, StepPhase::kRendezvous), 3);
  EXPECT_EQ(Ms(times, StepPhase::kBackward), 0);
  EXPECT_EQ(Ms(times, StepPhase::kWait), 4);
}

}  // namespace
}  // namespace cohort
