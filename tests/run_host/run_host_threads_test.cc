// A shard with as many threads as in a server, and without gRPC, so that the
// thread sanitizer sees every lock.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/timeline.h"
#include "server/run/run_host.h"
#include "tests/fakes/statuses.h"
#include "tests/run_host/run_host_fakes.h"
#include "tests/run_host/thread_worker.h"

namespace cohort {
namespace {

constexpr int32_t kWorkers = 4;
constexpr int64_t kSamples = 200;

// Records how the run ended.
class EndListener final : public SilentListener {
 public:
  void OnCommitted(const CommitRecord& record,
                   const CommitObservation&) override {
    commits.fetch_add(1);
    samples.store(record.samples);
  }
  void OnEnded(const effect::RunEnded& end, const SharedSnapshot&) override {
    outcome.store(static_cast<int>(end.outcome));
  }

  std::atomic<int64_t> commits = 0;
  std::atomic<int64_t> samples = 0;
  std::atomic<int> outcome = -1;
};

class CountedTimeline final : public Timeline {
 public:
  void Add(Span) override { spans.fetch_add(1); }

  std::atomic<int64_t> spans = 0;
};

struct ThreadedRun {
  RunHostOptions options;
  // If not 0, rank 1 leaves and comes back.
  int64_t leave_every = 0;
  // Runs beside the workers until they are done.
  std::function<void(RunHost&)> operator_does;

  bool old_calls = false;
  RunOutcome outcome = RunOutcome::kFinished;

  std::vector<float> weights;
  int64_t policy_epoch = 0;
  int64_t steps_aborted = 0;
  int64_t commits = 0;
  int64_t samples = 0;
  int64_t pauses = 0;

  void Run();
};

RunHostOptions FourWorkers() {
  RunHostOptions options = TinyRunHostOptions(kWorkers);
  options.coordinator.partition_bytes = 4000;
  options.coordinator.epochs = 2;
  options.fold_threads = 3;
  return options;
}

void ThreadedRun::Run() {
  EndListener listener;
  const MovedClock clock;
  RunHost shard(options, nullptr, clock, listener);
  shard.Start("here");
  std::vector<std::unique_ptr<ThreadWorker>> workers;
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < kWorkers; ++rank) {
    workers.push_back(std::make_unique<ThreadWorker>(shard, Rank(rank),
                                                     ThreadPlan(kSamples)));
    if (rank == 1) workers.back()->LeaveEvery(leave_every);
    if (old_calls) workers.back()->SendOldCalls();
  }
  for (const auto& worker : workers) {
    threads.emplace_back([&worker] { worker->Run(); });
  }
  std::atomic<bool> done = false;
  std::thread looker([&shard, &done] {
    while (!done.load()) {
      static_cast<void>(shard.Status());
      static_cast<void>(shard.State());
      static_cast<void>(shard.Find(std::nullopt));
      static_cast<void>(shard.Policy());
      static_cast<void>(shard.figures());
      std::this_thread::yield();
    }
  });
  if (operator_does) operator_does(shard);
  for (std::thread& thread : threads) thread.join();
  done.store(true);
  looker.join();
  shard.CloseStreams();
  shard.Stop();
  EXPECT_EQ(listener.outcome.load(), static_cast<int>(outcome));
  EXPECT_EQ(shard.figures().service.inflight_bytes, 0);
  for (const auto& worker : workers) {
    EXPECT_EQ(worker->answered(), worker->closed());
  }
  policy_epoch = shard.Policy().policy_epoch;
  steps_aborted = shard.Status().counts.steps_aborted;
  commits = listener.commits.load();
  samples = listener.samples.load();
  pauses = shard.figures().service.inflight_paused;
  const RunState last = OkValue(shard.State());
  for (const SharedFloats& partition : last.snapshot->weights) {
    weights.insert(weights.end(), partition->data(),
                   partition->data() + partition->size());
  }
}

// Every sample twice, and a rate of 1/2. The losses of a step weigh as much as
// the reference, so gradients are summed without scaling. All values are
// eighths, so nothing is rounded.
std::vector<float> ExpectedWeights() {
  std::vector<float> expected;
  for (int64_t element = 0; element < 3000; ++element) {
    double sum = 0;
    for (int64_t sample = 0; sample < kSamples; ++sample) {
      sum +=
          ThreadGradient({.begin = sample, .end = sample + 1}, element % 1000);
    }
    expected.push_back(static_cast<float>(1 - 2 * 0.5 * sum));
  }
  return expected;
}

TEST(RunHostThreadsTest, StepsOfAllWorkersGiveTheWeightsOfTheSums) {
  ThreadedRun run{.options = FourWorkers()};
  run.Run();
  EXPECT_EQ(run.commits, 2 * kSamples / kWorkers);
  EXPECT_EQ(run.samples, 2 * kSamples);
  EXPECT_EQ(run.weights, ExpectedWeights());
}

// There is room for two partitions, and four workers send three each.
TEST(RunHostThreadsTest, PausedStreamsGoOnAndGiveTheSameWeights) {
  ThreadedRun run{.options = FourWorkers()};
  run.options.coordinator.inflight_bytes_max = 8000;
  run.Run();
  EXPECT_GT(run.pauses, 0);
  EXPECT_EQ(run.weights, ExpectedWeights());
}

// Under `wait` its replacement repeats the push that it began.
TEST(RunHostThreadsTest, WorkerThatComesAndGoesChangesNoWeight) {
  ThreadedRun run{.options = FourWorkers(), .leave_every = 9};
  run.Run();
  EXPECT_EQ(run.samples, 2 * kSamples);
  EXPECT_EQ(run.weights, ExpectedWeights());
}

// Under `continue` steps are given up and begun again without it.
TEST(RunHostThreadsTest, StepsThatAreGivenUpUseEverySampleOnce) {
  ThreadedRun run{.options = FourWorkers(), .leave_every = 9};
  run.options.coordinator.on_worker_loss = OnWorkerLoss::kContinue;
  run.Run();
  EXPECT_EQ(run.samples, 2 * kSamples);
  EXPECT_GT(run.steps_aborted, 0);
}

// Two passes: reports of folds overtake each other between the two locks.
TEST(RunHostThreadsTest, ClippedStepsNeedTwoPasses) {
  ThreadedRun once{.options = FourWorkers()};
  once.options.coordinator.optimizer.clip_norm = 1;
  ThreadedRun again = once;
  once.Run();
  again.Run();
  EXPECT_EQ(once.commits, 2 * kSamples / kWorkers);
  EXPECT_EQ(once.weights, again.weights);
}

// The timeline names layers, and the contributions of clients to ended steps
// are not checked against the model.
TEST(RunHostThreadsTest, OldCallsOfNoLayerAreAnsweredWithATimeline) {
  CountedTimeline timeline;
  ThreadedRun run{.options = FourWorkers(), .old_calls = true};
  run.options.timeline = &timeline;
  run.Run();
  EXPECT_GT(timeline.spans.load(), 0);
  EXPECT_EQ(run.weights, ExpectedWeights());
}

TEST(RunHostThreadsTest, PolicyChangesUnderWayAndEveryPushIsAnswered) {
  constexpr int kChanges = 6;
  ThreadedRun run{.options = FourWorkers(), .leave_every = 25};
  run.options.coordinator.epochs = 1000;
  run.operator_does = [](RunHost& shard) {
    for (int i = 1; i <= kChanges; ++i) {
      const bool async = i % 2 == 1;
      // In the middle of training.
      const Version before = shard.Status().version;
      while (shard.Status().version <= before) std::this_thread::yield();
      const ChangeAnswer changed = OkValue(shard.Change(
          {.values = {{"aggregation", async ? "async" : "sync"},
                      {"normalization", async ? "local" : "global"}}}));
      while (shard.Policy().policy_epoch < changed.policy_epoch) {
        std::this_thread::yield();
      }
    }
    EXPECT_TRUE(shard.Drain("enough").ok());
  };
  run.outcome = RunOutcome::kDrained;
  run.Run();
  EXPECT_EQ(run.policy_epoch, 1 + kChanges);
  EXPECT_GT(run.samples, 0);
}

// A session that does something while it receives the answer to its join.
class JoiningSession final : public SessionStream {
 public:
  explicit JoiningSession(std::function<void()> meanwhile)
      : meanwhile_(std::move(meanwhile)) {}
  void SendJoined(const effect::Joined&) override {
    meanwhile_();
    joined.store(true);
  }
  void SendAssignment(const Assignment&) override {}
  void SendStepAborted(const effect::StepAborted&) override {}
  void End(const absl::Status& status) override {
    ADD_FAILURE() << "session ended: " << status;
  }

  std::atomic<bool> joined = false;

 private:
  const std::function<void()> meanwhile_;
};

// Otherwise the answer to a later event could overtake one to an earlier event.
TEST(RunHostThreadsTest, EffectsOfALaterEventWaitForThoseUnderWay) {
  SilentListener listener;
  const MovedClock clock;
  RunHost shard(TinyRunHostOptions(/*workers=*/2), nullptr, clock, listener);
  shard.Start("here");
  const auto join = [&shard](const std::shared_ptr<SessionStream>& session,
                             int32_t rank) {
    ExpectOk(
        shard.Join(*shard.AdmitSession(session),
                   {.rank = Rank(rank), .run_id = "run", .batch_size = 2}));
  };
  const auto second = std::make_shared<JoiningSession>([] {});
  const auto first = std::make_shared<JoiningSession>([&] {
    std::jthread([&] { join(second, 1); }).join();
    EXPECT_FALSE(second->joined.load());
  });
  join(first, 0);
  EXPECT_TRUE(first->joined.load());
  EXPECT_TRUE(second->joined.load());
}

}  // namespace
}  // namespace cohort
