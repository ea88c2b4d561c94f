// The events that a trainer reports about its steps.

#include "worker/telemetry/trainer_observer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "tests/fakes/fake_client.h"
#include "tests/fakes/tiny_dataset.h"
#include "worker/train/trainer.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;

class RecordedObserver final : public TrainerObserver {
 public:
  void OnState(TrainerState state) override { states.push_back(state); }
  void OnWeights(Version version) override {
    versions.push_back(version.value());
  }
  void OnStep(const StepReport& report) override { steps.push_back(report); }

  std::vector<TrainerState> states;
  std::vector<int64_t> versions;
  std::vector<StepReport> steps;
};

class RecordedTimeline final : public Timeline {
 public:
  void Add(Span span) override { spans.push_back(std::move(span)); }
  std::vector<Span> spans;
};

Assignment TrainOn(int64_t begin, int64_t end) {
  return {.kind = AssignmentKind::kTrain,
          .members = {Rank(0)},
          .range = {.begin = begin, .end = end},
          .global_normalization = true};
}

struct Told {
  RecordedObserver observer;
  RecordedTimeline timeline;
};

absl::Status RunTrainer(FakeClient& client, Told& told) {
  const TinyDataset dataset;
  return Trainer(client, dataset,
                 {.make_model =
                      [](uint64_t seed) {
                        return MakeModel({.name = "smooth",
                                          .channels = 1,
                                          .classes = 3,
                                          .seed = seed});
                      },
                  .batch_size = 5,
                  .evaluation_batch_size = 2,
                  .backend = &kernels::CpuBackend(),
                  .observer = &told.observer,
                  .timeline = &told.timeline})
      .Run();
}

TEST(TrainerObserverTest, HearsOfStatesVersionsAndSteps) {
  FakeClient client({TrainOn(0, 5),
                     TrainOn(5, 9),
                     {.kind = AssignmentKind::kEvaluate,
                      .range = {.begin = 0, .end = 2},
                      .split = DataSplit::kTest}});
  Told told;
  ASSERT_TRUE(RunTrainer(client, told).ok());
  using S = TrainerState;
  EXPECT_THAT(told.observer.states,
              ElementsAre(S::kWaiting, S::kTraining, S::kWaiting, S::kTraining,
                          S::kWaiting, S::kEvaluating, S::kWaiting));
  // The first weights were pulled; the others came with verdicts.
  EXPECT_THAT(told.observer.versions, ElementsAre(0, 1, 2));
  ASSERT_EQ(told.observer.steps.size(), 2u);
  const StepReport& second = told.observer.steps[1];
  EXPECT_EQ(second.samples, 4);
  EXPECT_EQ(second.version, Version(2));
  EXPECT_NEAR(*second.loss, client.pushes[1].closing.loss_sum / 4, 1e-9);
}

TEST(TrainerObserverTest, PhasesOfAStepAreOnTheTimeline) {
  FakeClient client({TrainOn(0, 5)});
  Told told;
  ASSERT_TRUE(RunTrainer(client, told).ok());
  std::map<std::string, int> count;
  const Span* step = nullptr;
  for (const Span& span : told.timeline.spans) {
    ++count[span.name];
    if (span.name == "step") step = &span;
  }
  for (const absl::string_view phase : kStepPhaseNames) {
    EXPECT_GT(count[std::string(phase)], 0) << phase;
  }
  ASSERT_NE(step, nullptr);
  // Each batch norm has one rendezvous in each pass.
  EXPECT_EQ(count["rendezvous"], static_cast<int>(client.reduced.size()));
  ASSERT_EQ(told.observer.steps.size(), 1u);
  const PhaseTimes& phases = told.observer.steps[0].phases;
  EXPECT_EQ(std::accumulate(phases.begin(), phases.end(), absl::ZeroDuration()),
            step->end - step->begin);
}

TEST(TrainerObserverTest, AStepThatIsGivenUpSaysWhyAndIsNotCounted) {
  FakeClient client({TrainOn(0, 5)});
  int reduces = 0;
  client.on_reduce = [&](const ReduceKey&) {
    return ++reduces == 2 ? absl::AbortedError("rank 1 is lost")
                          : absl::OkStatus();
  };
  Told told;
  ASSERT_TRUE(RunTrainer(client, told).ok());
  EXPECT_EQ(told.observer.steps.size(), 1u);
  std::vector<std::string> ends;
  for (const Span& span : told.timeline.spans) {
    if (span.name != "step") continue;
    ends.emplace_back();
    for (const auto& [name, value] : span.facts) {
      if (name == "ended") ends.back() = std::get<std::string>(value);
    }
  }
  EXPECT_THAT(ends, ElementsAre("rank 1 is lost", ""));
}

}  // namespace
}  // namespace cohort
