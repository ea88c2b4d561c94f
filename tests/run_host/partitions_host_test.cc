#include "server/partitions/partitions_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/float_buffer.h"
#include "common/mutex.h"
#include "kernels/backend.h"
#include "tests/core/float_values.h"
#include "tests/fakes/statuses.h"
#include "tests/kernels/reference/reference_backend.h"
#include "tests/run_host/run_host_fakes.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;

// Records what shard 0 receives.
class KeptReports final : public CoordinatorStream {
 public:
  void End(const absl::Status& status) override {
    MutexLock lock(mu_);
    if (!end_.has_value()) end_ = status;
    changed_.NotifyAll();
  }
  void SendGradient(const RemoteGradient& gradient) override {
    MutexLock lock(mu_);
    gradients_.push_back(gradient);
  }
  void SendFold(const FoldReport& report) override {
    MutexLock lock(mu_);
    folds_.push_back(report);
    changed_.NotifyAll();
  }

  void SendAlive() override {
    MutexLock lock(mu_);
    ++alive_;
  }
  void SendLeaving() override {
    MutexLock lock(mu_);
    ++leaving_;
  }

  int alive() const {
    MutexLock lock(mu_);
    return alive_;
  }
  int leaving() const {
    MutexLock lock(mu_);
    return leaving_;
  }
  std::vector<RemoteGradient> gradients() const {
    MutexLock lock(mu_);
    return gradients_;
  }
  std::optional<absl::Status> end() const {
    MutexLock lock(mu_);
    return end_;
  }
  size_t folds() const {
    MutexLock lock(mu_);
    return folds_.size();
  }
  FoldReport AwaitFold() {
    MutexLock lock(mu_);
    while (folds_.empty()) changed_.Wait(mu_);
    return folds_.front();
  }

 private:
  mutable Mutex mu_;
  CondVar changed_;
  std::vector<RemoteGradient> gradients_ ABSL_GUARDED_BY(mu_);
  std::vector<FoldReport> folds_ ABSL_GUARDED_BY(mu_);
  int alive_ ABSL_GUARDED_BY(mu_) = 0;
  int leaving_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
};

// A worker's stream. Used by one thread.
class KeptAnswers final : public ExchangeStream {
 public:
  void End(const absl::Status& status) override {
    if (!end.has_value()) end = status;
  }
  void Resume() override { ++resumed; }
  void SendWeights(const WeightsMessage& weights) override {
    if (out_of_memory) throw std::bad_alloc();
    sent.push_back(*weights.weights->data());
  }
  void SendVerdict(const effect::SendVerdict&) override {}

  bool out_of_memory = false;
  int resumed = 0;
  std::vector<float> sent;
  std::optional<absl::Status> end;
};

// Shard 1 of 2 of a model of two partitions with one element each.
class PartitionsHostTest : public ::testing::Test {
 protected:
  static ShardAttachment Attachment(const std::string& run,
                                    int64_t generation) {
    return {.run_id = run,
            .generation = generation,
            .place = {.index = 1, .count = 2},
            .authenticated = true};
  }

  static Installation Model(int64_t version) {
    CoordinatorOptions options;
    options.optimizer = {.kind = OptimizerKind::kSgd,
                         .weight_decay = 0,
                         .schedule = ScheduleKind::kConstant};
    return {.place = {.index = 1, .count = 2},
            .model = ModelOfOnes(2),
            .snapshot = SnapshotWith({nullptr, BufferOf({20})}, version),
            .settings = std::move(options)};
  }

  // A link of this generation with a model.
  std::shared_ptr<KeptReports> Attached(int64_t generation) {
    auto link = std::make_shared<KeptReports>();
    EXPECT_TRUE(host_.Attach(Attachment("run", generation), link).ok());
    EXPECT_TRUE(host_.Install(link.get(), Model(0)).ok());
    return link;
  }

  // Sends the gradient 4 of rank 0.
  absl::StatusOr<Reading> Push(const std::shared_ptr<KeptAnswers>& from,
                               const std::string& run = "run") {
    EXPECT_TRUE(host_.streams().Admit(from).ok());
    return PushTo(host_, from, run);
  }
  static absl::StatusOr<Reading> PushTo(
      PartitionsHost& host, const std::shared_ptr<KeptAnswers>& from,
      const std::string& run = "run") {
    return host.Gradient(
        {.run_id = run, .rank = Rank(0), .incarnation = Incarnation(1)},
        {.sequence = Sequence(1)},
        {.about = {.partition = 1}, .bytes = RopeOf(BufferOf({4}))}, from);
  }

  static PushId PushOfRankZero() {
    return {.rank = Rank(0), .key = {.sequence = Sequence(1)}};
  }
  static command::Prepare PlanOfRankZero() {
    return {.plan = {.transaction = 1,
                     .contributors = {PushOfRankZero()},
                     .learning_rate = 1,
                     .loss_weight = 1}};
  }
  static command::Take TakeOf(const RemoteGradient& gradient) {
    return {.rank = Rank(0),
            .incarnation = Incarnation(1),
            .push = PushOfRankZero(),
            .partition = 1,
            .ticket = gradient.gradient.ticket,
            .held = true};
  }

  static command::SendWeights WeightsAt(int64_t version) {
    return {.rank = Rank(0),
            .incarnation = Incarnation(1),
            .partition = 1,
            .version = Version(version)};
  }
  // Shard 0 sends a command that is obeyed.
  void Do(const std::shared_ptr<KeptReports>& link,
          const ShardCommand& command) {
    ExpectOk(host_.Handle(link.get(), command));
  }
  // How an attempt to attach ends.
  absl::Status Attach(const ShardAttachment& attachment) {
    return host_.Attach(attachment, std::make_shared<KeptReports>());
  }
  // The answer to a read of `version`; OK as long as there is none.
  std::shared_ptr<absl::Status> Read(const ReaderBelief& from,
                                     int64_t version) {
    const auto told = std::make_shared<absl::Status>();
    host_.Read(from, Version(version),
               [told](auto answer) { *told = answer.status(); });
    return told;
  }
  MovedClock clock_;
  PartitionsHost host_{{.fold_threads = 1}, clock_};
};

TEST_F(PartitionsHostTest, AGradientIsTakenFoldedCommittedAndSentBack) {
  const auto link = Attached(1);
  const auto worker = std::make_shared<KeptAnswers>();
  ASSERT_TRUE(Push(worker).ok());
  ASSERT_EQ(link->gradients().size(), 1u);
  EXPECT_EQ(link->gradients()[0].gradient.bytes, 4);
  Do(link, TakeOf(link->gradients()[0]));
  Do(link, PlanOfRankZero());
  EXPECT_TRUE(link->AwaitFold().prepared);
  Do(link, command::Commit{.transaction = 1, .version = Version(1)});
  Do(link, WeightsAt(1));
  EXPECT_THAT(worker->sent, ElementsAre(16));
}

TEST_F(PartitionsHostTest, ItsFiguresSayWhatItHoldsAndHasTransferred) {
  EXPECT_FALSE(host_.figures().connected);
  EXPECT_EQ(host_.figures().version, std::nullopt);
  const auto link = Attached(3);
  const auto worker = std::make_shared<KeptAnswers>();
  ASSERT_TRUE(Push(worker).ok());
  Do(link, TakeOf(link->gradients()[0]));
  Do(link, WeightsAt(0));
  DataShardFigures figures = host_.figures();
  EXPECT_TRUE(figures.connected);
  EXPECT_EQ(figures.run_id, "run");
  EXPECT_EQ(figures.shard, 1);
  EXPECT_EQ(figures.generation, 3);
  EXPECT_EQ(figures.connections, 1);
  EXPECT_EQ(figures.version, 0);
  EXPECT_EQ(figures.partitions, 1);
  EXPECT_EQ(figures.weights_bytes, 4);
  EXPECT_EQ(figures.service.push_bytes_float32, 4);
  EXPECT_EQ(figures.service.pull_bytes_float32, 4);
  EXPECT_EQ(figures.fold_seconds.count(), 0);
  ASSERT_TRUE(host_.Handle(link.get(), PlanOfRankZero()).ok());
  link->AwaitFold();
  host_.Detach(link.get());
  figures = host_.figures();
  EXPECT_EQ(figures.fold_seconds.count(), 1);
  EXPECT_FALSE(figures.connected);
  EXPECT_EQ(figures.generation, 3);
  EXPECT_EQ(figures.version, std::nullopt);
  EXPECT_EQ(figures.weights_bytes, 0);
}

TEST_F(PartitionsHostTest, AStreamThatCannotBeAnsweredEndsAndTheLinkStays) {
  const auto link = Attached(1);
  const auto worker = std::make_shared<KeptAnswers>();
  worker->out_of_memory = true;
  ASSERT_TRUE(Push(worker).ok());
  Do(link, TakeOf(link->gradients()[0]));
  Do(link, WeightsAt(0));
  ASSERT_TRUE(worker->end.has_value());
  EXPECT_TRUE(absl::IsResourceExhausted(*worker->end)) << *worker->end;
  EXPECT_TRUE(host_.figures().connected);
}

TEST_F(PartitionsHostTest, ShardZeroIsToldAtEachCheckThatThisProcessIsAlive) {
  host_.CheckStreams();
  const auto link = Attached(1);
  host_.CheckStreams();
  host_.CheckStreams();
  EXPECT_EQ(link->alive(), 2);
  host_.Detach(link.get());
  host_.CheckStreams();
  EXPECT_EQ(link->alive(), 2);
}

TEST_F(PartitionsHostTest, WithoutShardZeroNoGradientIsTaken) {
  EXPECT_TRUE(
      absl::IsUnavailable(Push(std::make_shared<KeptAnswers>()).status()));
}

TEST_F(PartitionsHostTest, AGradientOfAnotherRunIsRefused) {
  Attached(1);
  EXPECT_TRUE(absl::IsFailedPrecondition(
      Push(std::make_shared<KeptAnswers>(), "another").status()));
}

TEST_F(PartitionsHostTest, ARefusedGradientEndsItsStream) {
  const auto link = Attached(1);
  const auto worker = std::make_shared<KeptAnswers>();
  ASSERT_TRUE(Push(worker).ok());
  Do(link, command::Refuse{.ticket = link->gradients()[0].gradient.ticket,
                           .status = absl::AbortedError("fenced")});
  ASSERT_TRUE(worker->end.has_value());
  EXPECT_TRUE(absl::IsAborted(*worker->end));
}

TEST_F(PartitionsHostTest, AStreamIsPausedWhileManyOfItsGradientsWait) {
  const auto link = Attached(1);
  const auto worker = std::make_shared<KeptAnswers>();
  for (int i = 1; i < PartitionsHost::Options().staged_max; ++i) {
    EXPECT_EQ(*Push(worker), Reading::kGoesOn);
  }
  EXPECT_EQ(*Push(worker), Reading::kPaused);
  EXPECT_EQ(worker->resumed, 0);
  Do(link, TakeOf(link->gradients()[0]));
  EXPECT_EQ(worker->resumed, 1);
}

TEST_F(PartitionsHostTest, AHigherGenerationTakesOverAndWhatWasHeldIsGone) {
  const auto old = Attached(1);
  const auto worker = std::make_shared<KeptAnswers>();
  ASSERT_TRUE(Push(worker).ok());
  const RemoteGradient gradient = old->gradients()[0];
  const auto link = Attached(2);
  ASSERT_TRUE(old->end().has_value());
  EXPECT_TRUE(worker->end.has_value());
  // The earlier shard 0 may not know yet.
  EXPECT_TRUE(absl::IsAborted(host_.Handle(old.get(), TakeOf(gradient))));
  // Nor does the new one get a gradient that was not announced to it.
  EXPECT_FALSE(host_.Handle(link.get(), TakeOf(gradient)).ok());
}

// Transaction numbers begin again, so its number says nothing.
TEST_F(PartitionsHostTest, AFoldOfAnOldGenerationComesToNothing) {
  std::vector<std::pair<FoldJob, PartitionsHost::OnFolded>> folds;
  PartitionsHost host(
      {.fold =
           [&folds](FoldJob job, PartitionsHost::OnFolded done) {
             folds.emplace_back(std::move(job), std::move(done));
           }},
      clock_);
  std::shared_ptr<KeptReports> link;
  for (int64_t generation : {1, 2}) {
    link = std::make_shared<KeptReports>();
    ASSERT_TRUE(host.Attach(Attachment("run", generation), link).ok());
    ASSERT_TRUE(host.Install(link.get(), Model(0)).ok());
    const auto worker = std::make_shared<KeptAnswers>();
    ASSERT_TRUE(host.streams().Admit(worker).ok());
    ASSERT_TRUE(PushTo(host, worker).ok());
    ASSERT_TRUE(host.Handle(link.get(), TakeOf(link->gradients()[0])).ok());
    ASSERT_TRUE(host.Handle(link.get(), PlanOfRankZero()).ok());
  }
  ASSERT_EQ(folds.size(), 2u);
  FloatBufferPool pool;
  for (auto& [job, done] : folds) {
    EXPECT_EQ(link->folds(), 0u);
    done(RunFold(job, kernels::ReferenceBackend(), pool));
  }
  EXPECT_EQ(link->folds(), 1u);
}

TEST_F(PartitionsHostTest, AFoldThatHasNotBegunIsDroppedWithItsGeneration) {
  const auto newer = std::make_shared<KeptReports>();
  std::vector<PartitionsHost::OnFolded> folds;
  PartitionsHost* attached = nullptr;
  PartitionsHost host(
      {.fold =
           [&](const FoldJob&, PartitionsHost::OnFolded done) {
             folds.push_back(std::move(done));
             // Between two folds of one command.
             EXPECT_TRUE(attached->Attach(Attachment("run", 2), newer).ok());
           }},
      clock_);
  attached = &host;
  Installation wide = Model(0);
  auto model = std::make_shared<RegisteredModel>(*wide.model);
  model->layout.parameters.push_back({.name = "c", .shape = {1}});
  model->layout.parameters.push_back({.name = "d", .shape = {1}});
  model->partitions = MakePartitions(model->layout, sizeof(float));
  auto first = std::make_shared<ModelSnapshot>(*wide.snapshot);
  first->weights = {nullptr, BufferOf({20}), nullptr, BufferOf({20})};
  first->slots.resize(4);
  wide.model = std::move(model);
  wide.snapshot = std::move(first);
  const auto link = std::make_shared<KeptReports>();
  ASSERT_TRUE(host.Attach(Attachment("run", 1), link).ok());
  ASSERT_TRUE(host.Install(link.get(), wide).ok());
  const auto worker = std::make_shared<KeptAnswers>();
  ASSERT_TRUE(host.streams().Admit(worker).ok());
  for (int32_t partition : {1, 3}) {
    ExpectOk(host.Gradient(
        {.run_id = "run", .rank = Rank(0), .incarnation = Incarnation(1)},
        {.sequence = Sequence(1)},
        {.about = {.partition = partition}, .bytes = RopeOf(BufferOf({4}))},
        worker));
    command::Take take = TakeOf(link->gradients().back());
    take.partition = partition;
    ASSERT_TRUE(host.Handle(link.get(), take).ok());
  }
  ASSERT_TRUE(host.Handle(link.get(), PlanOfRankZero()).ok());
  EXPECT_EQ(folds.size(), 1);
  for (PartitionsHost::OnFolded& done : folds) done({});
  EXPECT_EQ(newer->folds(), 0u);
}

TEST_F(PartitionsHostTest, AnOldGenerationIsRefusedEvenIfTheNewOneIsGone) {
  const auto link = Attached(2);
  host_.Detach(link.get());
  EXPECT_THAT(Attach(Attachment("run", 1)),
              IsError(kAborted, "want at least 2"));
}

// The connection was lost before shard 0 knew that it was attached, and may
// still look open here.
TEST_F(PartitionsHostTest, TheSameStartOfShardZeroMayAttachAgain) {
  const auto lost = std::make_shared<KeptReports>();
  ASSERT_TRUE(host_.Attach(Attachment("run", 1), lost).ok());
  const auto link = std::make_shared<KeptReports>();
  ASSERT_TRUE(host_.Attach(Attachment("run", 1), link).ok());
  EXPECT_TRUE(lost->end().has_value());
  EXPECT_TRUE(absl::IsAborted(host_.Install(lost.get(), Model(0))));
  EXPECT_TRUE(host_.Install(link.get(), Model(0)).ok());
}

TEST_F(PartitionsHostTest,
       WithoutACertificateNobodyReplacesAShardZeroThatIsThere) {
  const auto link = Attached(1);
  ShardAttachment later = Attachment("run", 2);
  later.authenticated = false;
  EXPECT_THAT(Attach(later),
              IsError(kUnavailable, "after that connection has ended"));
  EXPECT_FALSE(link->end().has_value());
  host_.Detach(link.get());
  EXPECT_TRUE(Attach(later).ok());
}

// It would lock out every later start of the run's own shard 0.
TEST_F(PartitionsHostTest, AGenerationThatNoRunReachesIsRefused) {
  const int64_t start = int64_t{1000} << 32;
  const auto link = Attached(start);
  const auto attach = [this](int64_t generation) {
    return Attach(Attachment("run", generation));
  };
  EXPECT_TRUE(absl::IsInvalidArgument(attach(int64_t{1} << 62)));
  EXPECT_FALSE(link->end().has_value());
  host_.Detach(link.get());
  EXPECT_TRUE(absl::IsInvalidArgument(attach(int64_t{1} << 62)));
  // Shard 0 was started many times while this process was away.
  EXPECT_TRUE(attach(start + (int64_t{70000} << 32)).ok());
}

TEST_F(PartitionsHostTest, AnotherRunIsRefusedOnlyWhileThisOneIsConnected) {
  const auto link = Attached(1);
  EXPECT_TRUE(absl::IsAlreadyExists(Attach(Attachment("another", 1))));
  host_.Detach(link.get());
  EXPECT_TRUE(Attach(Attachment("another", 1)).ok());
}

TEST_F(PartitionsHostTest, AReadOfAVersionThatIsToComeWaitsForIt) {
  const auto link = Attached(1);
  std::optional<absl::StatusOr<SharedSnapshot>> read;
  host_.Read(
      {.run_id = "run", .generation = 1}, Version(1),
      [&read](absl::StatusOr<SharedSnapshot> got) { read = std::move(got); });
  EXPECT_FALSE(read.has_value());
  ExpectOk(host_.Handle(link.get(), command::Abort{.skipped = Version(1)}));
  ASSERT_TRUE(read.has_value());
  ASSERT_TRUE(read->ok());
  EXPECT_EQ((**read)->version, Version(1));
}

TEST_F(PartitionsHostTest, StreamsThatSayNothingEnd) {
  for (StreamRegistry* registry : {&host_.streams(), &host_.links()}) {
    const auto silent = std::make_shared<KeptAnswers>();
    const auto spoken = std::make_shared<KeptAnswers>();
    ASSERT_TRUE(host_.Admit(*registry, silent, /*speaks=*/true).ok());
    ASSERT_TRUE(host_.Admit(*registry, spoken, /*speaks=*/true).ok());
    registry->Spoke(spoken.get());
    clock_.Advance(absl::Seconds(15));
    host_.CheckStreams();
    ASSERT_TRUE(silent->end.has_value());
    EXPECT_TRUE(absl::IsDeadlineExceeded(*silent->end)) << *silent->end;
    EXPECT_FALSE(spoken->end.has_value());
  }
}

TEST_F(PartitionsHostTest, OneProcessIsOneShard) {
  const auto link = Attached(1);
  ShardAttachment second = Attachment("run", 1);
  second.place = {.index = 2, .count = 3};
  EXPECT_TRUE(absl::IsAlreadyExists(Attach(second)));
  EXPECT_FALSE(link->end().has_value());
}

TEST_F(PartitionsHostTest, AReadIsOfOneGeneration) {
  Attached(2);
  EXPECT_TRUE(
      absl::IsUnavailable(*Read({.run_id = "run", .generation = 1}, 0)));
  EXPECT_TRUE(Read({.run_id = "run", .generation = 2}, 0)->ok());
}

TEST_F(PartitionsHostTest, OnlyTheShardThatIsMeantServes) {
  EXPECT_TRUE(absl::IsUnavailable(host_.Serves({.run_id = "run", .shard = 1})));
  const auto link = Attached(2);
  EXPECT_TRUE(host_.Serves({.run_id = "run", .shard = 1}).ok());
  EXPECT_TRUE(host_.Serves({}).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(
      host_.Serves({.run_id = "other", .shard = 1})));
  EXPECT_TRUE(
      absl::IsUnavailable(host_.Serves({.run_id = "run", .generation = 1})));
  EXPECT_THAT(*Read({.run_id = "run", .shard = 2}, 0),
              IsError(kFailedPrecondition, "got a call for shard 2"));
  host_.Detach(link.get());
  EXPECT_TRUE(absl::IsUnavailable(host_.Serves({.run_id = "run", .shard = 1})));
}

TEST_F(PartitionsHostTest, ShardZeroIsToldBeforeTheProcessStops) {
  host_.Leave();
  EXPECT_TRUE(absl::IsUnavailable(Attach(Attachment("run", 1))));

  PartitionsHost other({.fold_threads = 1}, clock_);
  const auto link = std::make_shared<KeptReports>();
  ASSERT_TRUE(other.Attach(Attachment("run", 1), link).ok());
  other.Leave();
  EXPECT_EQ(link->leaving(), 1);
  // It is still needed for a checkpoint, and not by the next start of shard 0.
  EXPECT_FALSE(link->end().has_value());
  EXPECT_TRUE(other.figures().connected);
  EXPECT_TRUE(absl::IsUnavailable(
      other.Attach(Attachment("run", 2), std::make_shared<KeptReports>())));
}

TEST_F(PartitionsHostTest, AReadOfAVersionThatDoesNotComeIsGivenUp) {
  Attached(1);
  const auto told = Read({.run_id = "run"}, 1);
  clock_.Advance(absl::Seconds(29));
  host_.CheckStreams();
  EXPECT_TRUE(told->ok());
  clock_.Advance(absl::Seconds(1));
  host_.CheckStreams();
  EXPECT_TRUE(absl::IsUnavailable(*told)) << *told;
}

TEST_F(PartitionsHostTest, AReadBeyondTheNextVersionIsRefusedAtOnce) {
  Attached(1);
  for (const int64_t version : {int64_t{2}, int64_t{1} << 60}) {
    EXPECT_TRUE(absl::IsOutOfRange(*Read({.run_id = "run"}, version)));
  }
}

TEST_F(PartitionsHostTest, AReadThatWaitsEndsWithItsShardZero) {
  const auto link = Attached(1);
  const auto told = Read({.run_id = "run", .generation = 1}, 1);
  host_.Detach(link.get());
  EXPECT_TRUE(absl::IsUnavailable(*told)) << *told;
}

TEST_F(PartitionsHostTest, ACommandWithoutAModelIsRefused) {
  const auto link = std::make_shared<KeptReports>();
  ASSERT_TRUE(host_.Attach(Attachment("run", 1), link).ok());
  EXPECT_TRUE(
      absl::IsFailedPrecondition(host_.Handle(link.get(), command::Drop{})));
  ASSERT_TRUE(host_.Install(link.get(), Model(0)).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(host_.Install(link.get(), Model(0))));
}

TEST_F(PartitionsHostTest, AChangedCohortChangesTheNumberOfStreams) {
  const std::shared_ptr<KeptReports> link = Attached(1);
  ExpectOk(host_.Handle(link.get(),
                        command::Adopt{.changed = {{"workers", "100"}}}));
  for (int32_t i = 0; i < StreamRegistry::LimitsOf(100).streams; ++i) {
    const auto stream = std::make_shared<KeptAnswers>();
    ASSERT_TRUE(host_.streams().Admit(stream).ok()) << i;
  }
  EXPECT_TRUE(absl::IsResourceExhausted(
      host_.streams().Admit(std::make_shared<KeptAnswers>())));
}

}  // namespace
}  // namespace cohort
