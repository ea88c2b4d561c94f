// One worker's session with a server that is a script. The model is three
// parameters of one element, each a partition.

#include "worker/session/worker_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/fakes/fake_client.h"
#include "tests/fakes/statuses.h"
#include "worker/session/host_model.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using LastPush = WorkerSession::LastPush;

// What observers and the timeline get.
class Recorded final : public TrainerObserver, public Timeline {
 public:
  void OnState(TrainerState state) override { states.push_back(state); }
  void OnWeights(Version version) override {
    versions.push_back(version.value());
  }
  void OnStep(const StepReport& report) override { steps.push_back(report); }
  void Add(Span span) override { spans.push_back(std::move(span)); }

  std::vector<TrainerState> states;
  std::vector<int64_t> versions;
  std::vector<StepReport> steps;
  std::vector<Span> spans;
};

std::vector<Assignment> Script() {
  const Assignment step = {.kind = AssignmentKind::kTrain,
                           .members = {Rank(0)},
                           .range = {.begin = 0, .end = 4}};
  return {step, step, step, {.kind = AssignmentKind::kEvaluate}};
}

const Contribution kCall = {
    .place = {}, .moments = {.count = 2, .first = {1}, .second = {1}}};

class WorkerSessionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    client_.partition_bytes = 4;
    client_.learning_rate = 1;
    client_.on_gradient = [this](int32_t partition) {
      sent_.push_back(partition);
      return absl::OkStatus();
    };
    client_.on_reduce = [this](const ReduceKey& /*key*/) { return refusal_; };
    const ModelLayout layout{
        .parameters = {{.name = "a", .shape = {1}},
                       {.name = "b", .shape = {1}},
                       {.name = "c", .shape = {1}}},
        .batch_norms = {{.name = "bn", .channels = 1, .affine = false}}};
    ASSERT_TRUE(session_.Join().ok());
    ExpectOk(session_.Register(layout, {.loss_reference = 1}, model_.Values(),
                               {}, model_));
  }

  // The next assignment, with its weights read.
  Assignment Begin() {
    const Assignment assignment = *session_.NextAssignment();
    EXPECT_TRUE(session_.ReadWeights(assignment).ok());
    session_.Begin(assignment);
    return assignment;
  }

  // Opens and closes a push of four samples.
  absl::Status Push() {
    EXPECT_TRUE(session_.Open({.samples = 4, .loss_weight = 1}).ok());
    const absl::Status status = session_.Close({.loss_sum = 3}).status();
    session_.End(status);
    return status;
  }

  std::vector<float> weights_ = {1, 2, 3};
  const std::vector<float> gradients_ = {0.5, 0.25, 0.125};
  FakeClient client_{Script()};
  Recorded recorded_;
  WorkerSession session_{client_,
                         {.observer = &recorded_, .timeline = &recorded_}};
  HostModel model_{
      {{&weights_[0], 1}, {&weights_[1], 1}, {&weights_[2], 1}},
      [this](size_t i) {
        return HostModel::ParameterGradient{.data = &gradients_[i]};
      }};
  std::vector<int32_t> sent_;
  absl::Status refusal_;
};

TEST_F(WorkerSessionTest, AStepMovesTheWeightsToTheVersionOfItsVerdict) {
  Begin();
  EXPECT_EQ(session_.version(), Version(0));
  ASSERT_TRUE(session_.Reduce({kCall, kCall}).ok());
  ASSERT_TRUE(session_.Open({.samples = 4, .loss_weight = 1}).ok());
  ASSERT_TRUE(session_.Finish(2).ok());
  ASSERT_TRUE(session_.Finish(1).ok());
  EXPECT_THAT(sent_, ElementsAre(2, 1));
  ASSERT_TRUE(session_.Close({.loss_sum = 3}).ok());
  EXPECT_THAT(sent_, ElementsAre(2, 1, 0));
  EXPECT_THAT(weights_, ElementsAre(0.5, 1.75, 2.875));
  EXPECT_EQ(session_.version(), Version(1));
  EXPECT_EQ(client_.pushes[0].closing.contributions, 2);
}

// After an update the memory holds no version.
TEST_F(WorkerSessionTest, AnUpdateMovesTheWeightsUntilTheStepIsVoid) {
  Begin();
  ASSERT_TRUE(
      session_.Open({.samples = 4, .loss_weight = 1, .continues = true}).ok());
  ASSERT_TRUE(session_.Finish(1).ok());
  ASSERT_TRUE(session_.EndUpdate().ok());
  EXPECT_THAT(sent_, ElementsAre(1, 0, 2));
  EXPECT_THAT(weights_, ElementsAre(0.5, 1.75, 2.875));
  EXPECT_EQ(session_.version(), Version(0));
  // The next update has gradients of all parameters again.
  ASSERT_TRUE(session_.Open({.samples = 4, .loss_weight = 1}).ok());
  ASSERT_TRUE(session_.Finish(1).ok());
  session_.End(absl::AbortedError("rank 1 is lost"));
  EXPECT_EQ(client_.weight_pulls, 1);
  Begin();
  EXPECT_EQ(client_.weight_pulls, 2);
  EXPECT_THAT(weights_, ElementsAre(1, 2, 3));
}

TEST_F(WorkerSessionTest, ASkippedStepHasTakenItsUpdatesBack) {
  client_.verdicts = {Verdict::kSkipped};
  Begin();
  ASSERT_TRUE(
      session_.Open({.samples = 4, .loss_weight = 1, .continues = true}).ok());
  ASSERT_TRUE(session_.EndUpdate().ok());
  ASSERT_TRUE(Push().ok());
  EXPECT_EQ(session_.version(), std::nullopt);
  Begin();
  EXPECT_THAT(weights_, ElementsAre(1, 2, 3));
}

// The version is known after a skipped step, but not after a dropped push.
TEST_F(WorkerSessionTest, WeightsArePulledUnlessTheirVersionIsKnown) {
  client_.verdicts = {Verdict::kSkipped, Verdict::kDropped,
                      Verdict::kRejectedNonfinite};
  for (const int32_t pulls : {1, 1, 2}) {
    Begin();
    EXPECT_EQ(client_.weight_pulls, pulls);
    ASSERT_TRUE(Push().ok());
  }
  Begin();
  EXPECT_EQ(client_.weight_pulls, 3);
}

TEST_F(WorkerSessionTest, AVoidStepSendsNothingMoreAndKeepsItsFirstReason) {
  Begin();
  const absl::Status lost = absl::AbortedError("rank 1 is lost");
  refusal_ = lost;
  EXPECT_EQ(session_.Reduce({kCall}).status(), lost);
  refusal_ = absl::OkStatus();
  EXPECT_EQ(session_.Reduce({kCall}).status(), lost);
  EXPECT_EQ(client_.reduced.size(), 1u);
  EXPECT_EQ(session_.Open({}), lost);
  EXPECT_EQ(session_.Finish(0), lost);
  EXPECT_EQ(session_.Close({}).status(), lost);
  session_.End(absl::UnavailableError("a later reason"));
  EXPECT_EQ(session_.step_status(), lost);
  EXPECT_THAT(sent_, IsEmpty());
  EXPECT_THAT(recorded_.steps, IsEmpty());
  const auto& facts = recorded_.spans.back().facts;
  EXPECT_EQ(facts.back(), std::make_pair(std::string("ended"),
                                         Span::Value("rank 1 is lost")));

  Begin();
  EXPECT_TRUE(session_.step_status().ok());
}

TEST_F(WorkerSessionTest, ASecondGradientOfAParameterIsAnError) {
  Begin();
  ASSERT_TRUE(session_.Open({.loss_weight = 1}).ok());
  ASSERT_TRUE(session_.Finish(1).ok());
  EXPECT_THAT(session_.Finish(1), IsError(kInternal, "b: "));
}

// The server's answer has the moments of the call: one channel, count 2.
TEST_F(WorkerSessionTest, AnAnswerOfAnotherShapeNamesTheLayer) {
  Begin();
  Contribution odd = kCall;
  odd.moments.second = {1, 1};
  const absl::Status status = session_.Reduce({odd}).status();
  EXPECT_THAT(status, IsError(kInternal, "bn: "));
  EXPECT_EQ(session_.step_status(), status);
}

TEST_F(WorkerSessionTest, ObserversHearOfStatesVersionsAndSteps) {
  for (int step = 0; step < 3; ++step) {
    Begin();
    ASSERT_TRUE(Push().ok());
  }
  Begin();
  ASSERT_TRUE(session_.ReportEvaluation({}).ok());
  session_.End(absl::OkStatus());
  using S = TrainerState;
  EXPECT_THAT(
      recorded_.states,
      ElementsAre(S::kWaiting, S::kTraining, S::kWaiting, S::kTraining,
                  S::kWaiting, S::kTraining, S::kWaiting, S::kEvaluating));
  // The first weights were pulled; the others came with verdicts.
  EXPECT_THAT(recorded_.versions, ElementsAre(0, 1, 2, 3));
  ASSERT_EQ(recorded_.steps.size(), 3u);
  EXPECT_EQ(recorded_.steps[1].samples, 4);
  EXPECT_EQ(recorded_.steps[1].version, Version(2));
  EXPECT_EQ(recorded_.steps[1].loss, 3);
  EXPECT_EQ(recorded_.spans.back().name, "evaluate");
}

TEST_F(WorkerSessionTest, PhasesOfAStepAreOnTheTimelineAndAddUp) {
  Begin();
  ASSERT_TRUE(session_.Reduce({kCall}).ok());
  ASSERT_TRUE(Push().ok());
  std::map<std::string, int> count;
  for (const Span& span : recorded_.spans) ++count[span.name];
  EXPECT_EQ(count["rendezvous"], 1);
  // The opening, three partitions, and loading the weights.
  EXPECT_EQ(count["push"], 5);
  // For the assignment, the pull and the verdict.
  EXPECT_EQ(count["wait"], 3);
  const Span& step = recorded_.spans.back();
  EXPECT_EQ(step.name, "step");
  const PhaseTimes& phases = recorded_.steps[0].phases;
  EXPECT_EQ(std::accumulate(phases.begin(), phases.end(), absl::ZeroDuration()),
            step.end - step.begin);
}

// After a push whose answer was lost.
class LastPushTest : public WorkerSessionTest {
 protected:
  void SetUp() override {
    WorkerSessionTest::SetUp();
    client_.on_close = [] { return absl::UnavailableError("broken"); };
    lost_ = Begin();
    EXPECT_TRUE(absl::IsUnavailable(Push()));
    next_ = *session_.NextAssignment();
    client_.on_repeat = [this](const PushKey& key) {
      asked_.push_back(key);
      return absl::StatusOr<PushVerdict>(PushVerdict());
    };
  }

  Assignment lost_;
  Assignment next_;
  std::vector<PushKey> asked_;
};

TEST_F(LastPushTest, TheServerSaysOnceWhetherItCounts) {
  // The same push is sent again without a question.
  EXPECT_EQ(*session_.SettleLastPush(lost_), LastPush::kRepeat);
  EXPECT_THAT(asked_, IsEmpty());
  EXPECT_EQ(*session_.SettleLastPush(next_), LastPush::kCounted);
  EXPECT_EQ(*session_.SettleLastPush(next_), LastPush::kRepeat);
  EXPECT_THAT(asked_, ElementsAre(PushKey{.sequence = lost_.sequence,
                                          .attempt = lost_.attempt}));
}

TEST_F(LastPushTest, AfterARestartItCannotBeKnown) {
  client_.current = Incarnation(2);
  EXPECT_EQ(*session_.SettleLastPush(next_), LastPush::kUnknown);
  EXPECT_THAT(asked_, IsEmpty());
}

}  // namespace
}  // namespace cohort
