// Policies that change under load while workers die: every push is applied
// once, whatever happens to its sender.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "cohort/v1/admin.grpc.pb.h"
#include "common/float_buffer.h"
#include "common/mutex.h"
#include "common/permutation.h"
#include "server/main/server.h"
#include "tests/fakes/statuses.h"
#include "worker/client/client.h"

namespace cohort {
namespace {

constexpr int32_t kWorkers = 4;
constexpr int64_t kSamples = 400;
constexpr int64_t kEpochs = 2;
constexpr int64_t kCells = kSamples * kEpochs;
constexpr double kLossReference = kWorkers;

using Settings = std::map<std::string, std::string>;

// Verdicts that workers received, by the cell to which each push adds 1.
class Verdicts {
 public:
  void Note(int64_t cell, const PushVerdict& verdict) {
    MutexLock lock(mu_);
    // The push was complete when its attempt ended; the cell comes again.
    if (verdict.verdict == Verdict::kDropped &&
        absl::StrContains(verdict.reason, "ended early")) {
      return;
    }
    if (!IsApplied(verdict.verdict)) {
      ADD_FAILURE() << "cell " << cell << ": " << verdict.reason;
    }
    if (!verdict.duplicate && !applied_.insert(cell).second) {
      ADD_FAILURE() << "cell " << cell << " was answered twice as applied";
    }
  }
  void NoteDeath() {
    MutexLock lock(mu_);
    ++deaths_;
  }
  size_t applied() const {
    MutexLock lock(mu_);
    return applied_.size();
  }
  int64_t deaths() const {
    MutexLock lock(mu_);
    return deaths_;
  }

 private:
  mutable Mutex mu_;
  std::set<int64_t> applied_ ABSL_GUARDED_BY(mu_);
  int64_t deaths_ ABSL_GUARDED_BY(mu_) = 0;
};

// One rank through several incarnations. Its push of sample s of epoch e adds
// exactly 1 to cell e * kSamples + s under every policy: the learning rate is
// 1, and the losses have weights that make the scale of a step 1.
class CellWorker {
 public:
  CellWorker(std::string server, Rank rank, Verdicts& verdicts)
      : server_(std::move(server)),
        rank_(rank),
        verdicts_(verdicts),
        random_(MixSeed(1, static_cast<uint64_t>(rank.value()))) {}

  // Returns once the run is over.
  void Run() {
    while (!Live()) verdicts_.NoteDeath();
  }

 private:
  // Returns false if this incarnation ended before the run.
  bool Live() {
    auto client = MakeGrpcClient({.server = server_,
                                  .rank = rank_,
                                  .batch_size = 1,
                                  .server_timeout = absl::Minutes(1)});
    // If the others continue, the run may have ended without this rank.
    if (!client.ok() || !Begin(**client).ok()) return true;
    for (;;) {
      const absl::StatusOr<Assignment> next = (*client)->NextAssignment();
      if (absl::IsAborted(next.status()) ||
          absl::IsUnavailable(next.status())) {
        continue;
      }
      if (!next.ok()) return true;
      if (next->kind == AssignmentKind::kFinished) {
        (*client)->Leave({.reason = "done"});
        return true;
      }
      if (next->kind != AssignmentKind::kTrain) continue;
      if (!Train(**client, *next)) return false;
    }
  }

  absl::Status Begin(Client& client) {
    const auto joined = client.Join();
    if (!joined.ok()) return joined.status();
    const std::vector<float> zeros(static_cast<size_t>(kCells));
    const absl::Span<const float> values(zeros);
    const auto registered =
        client.Register({.parameters = {{.name = "cells", .shape = {kCells}}}},
                        {.dataset = "cells",
                         .dataset_digest = "00",
                         .train_samples = kSamples,
                         .loss_reference = kLossReference},
                        absl::MakeConstSpan(&values, 1), {});
    if (registered.ok()) partitions_ = registered->partitions;
    return registered.status();
  }

  // Returns false if this incarnation ends within the push.
  bool Train(Client& client, const Assignment& told) {
    const int64_t cell = told.data_epoch * kSamples + told.range.begin;
    const int64_t dies_after =
        random_.Below(25) == 0 ? static_cast<int64_t>(random_.Below(4)) : -1;
    const double loss_weight =
        told.members.empty()
            ? 1
            : kLossReference / static_cast<double>(told.members.size());
    if (dies_after == 0) return false;
    if (!client
             .OpenPush({.version = told.version,
                        .samples = told.range.size(),
                        .loss_weight = loss_weight})
             .ok()) {
      return true;
    }
    if (dies_after == 1) return false;
    int64_t begin = 0;
    for (size_t p = 0; p < partitions_.size(); ++p) {
      const int64_t elements = partitions_[p].elements;
      auto gradient = std::make_shared<FloatBuffer>(elements);
      for (int64_t i = 0; i < elements; ++i) {
        gradient->data()[i] = begin + i == cell ? -1.0f : 0.0f;
      }
      begin += elements;
      if (!client.SendGradient(static_cast<int32_t>(p), RopeOf(gradient), {})
               .ok()) {
        return true;
      }
      if (dies_after == 2 && p == 0) return false;
    }
    if (dies_after == 3) return false;
    const absl::StatusOr<PushResult> result = client.ClosePush({});
    if (result.ok()) verdicts_.Note(cell, result->verdict);
    return true;
  }

  const std::string server_;
  const Rank rank_;
  Verdicts& verdicts_;
  SplitMix64 random_;
  std::vector<Partition> partitions_;
};

ServerOptions CellOptions(OnWorkerLoss on_worker_loss) {
  ServerOptions options;
  options.listen = "127.0.0.1:0";
  CoordinatorOptions& run = options.coordinator;
  run.workers = kWorkers;
  run.epochs = kEpochs;
  run.optimizer = {.kind = OptimizerKind::kSgd,
                   .learning_rate = 1,
                   .weight_decay = 0,
                   .schedule = ScheduleKind::kConstant};
  run.on_worker_loss = on_worker_loss;
  run.reconnect_grace = absl::Milliseconds(5);
  run.partition_bytes = 1024;
  return options;
}

class Operator {
 public:
  explicit Operator(const std::string& server)
      : admin_(v1::Admin::NewStub(
            grpc::CreateChannel(server, grpc::InsecureChannelCredentials()))) {}

  // Waits until `pushes` were applied in all.
  bool AwaitApplied(int64_t pushes) {
    for (;;) {
      grpc::ClientContext context;
      v1::Status status;
      if (!admin_->GetStatus(&context, {}, &status).ok()) return false;
      if (status.counters().at("pushes_applied") >= pushes) return true;
    }
  }

  // Returns the version at which it took effect, or -1 if the run is over.
  int64_t Change(const Settings& settings) {
    grpc::ClientContext context;
    v1::SetPolicyRequest request;
    request.mutable_settings()->insert(settings.begin(), settings.end());
    request.set_wait_ms(absl::ToInt64Milliseconds(absl::Hours(1)));
    v1::SetPolicyReply reply;
    if (!admin_->SetPolicy(&context, request, &reply).ok()) return -1;
    return reply.change().version();
  }

 private:
  std::unique_ptr<v1::Admin::Stub> admin_;
};

void RunThroughThePolicies(OnWorkerLoss on_worker_loss) {
  std::ostringstream progress;
  auto server = OkValue(StartServer(CellOptions(on_worker_loss), progress));
  Verdicts verdicts;
  std::vector<std::jthread> threads;
  for (int32_t rank = 0; rank < kWorkers; ++rank) {
    threads.emplace_back([&, rank] {
      CellWorker(server->address(), Rank(rank), verdicts).Run();
    });
  }
  std::vector<int64_t> versions;
  threads.emplace_back([&] {
    Operator people(server->address());
    const std::vector<Settings> changes = {
        {{"aggregation", "bounded"}, {"max_lead", "2"}},
        {{"aggregation", "async"}},
        {{"aggregation", "sync"}},
        {{"aggregation", "async"}, {"staleness", "keep"}},
        {{"aggregation", "sync"}}};
    for (size_t i = 0; i < changes.size(); ++i) {
      if (!people.AwaitApplied(static_cast<int64_t>(100 * (i + 1)))) return;
      versions.push_back(people.Change(changes[i]));
    }
  });
  const RunSummary summary = server->Wait();
  threads.clear();
  ASSERT_EQ(summary.outcome, RunOutcome::kFinished) << summary.reason;

  int64_t cell = 0;
  for (const SharedFloats& weights : summary.snapshot->weights) {
    for (float value : weights->span()) {
      ASSERT_EQ(value, 1) << "cell " << cell;
      ++cell;
    }
  }
  EXPECT_EQ(cell, kCells);
  // A worker that died may not have received the verdict on its last push.
  EXPECT_LE(verdicts.applied(), static_cast<size_t>(kCells));
  EXPECT_GE(verdicts.applied() + static_cast<size_t>(verdicts.deaths()),
            static_cast<size_t>(kCells));
  EXPECT_GT(verdicts.deaths(), 5);
  ASSERT_EQ(versions.size(), 5);
  for (size_t i = 0; i < versions.size(); ++i) {
    EXPECT_GT(versions[i], i == 0 ? 0 : versions[i - 1]);
  }
}

TEST(PolicyLoadTest, EveryPushIsAppliedOnceWhileReplacementsAreWaitedFor) {
  RunThroughThePolicies(OnWorkerLoss::kWait);
}

TEST(PolicyLoadTest, EveryPushIsAppliedOnceWhileTheOthersGoOn) {
  RunThroughThePolicies(OnWorkerLoss::kContinue);
}

}  // namespace
}  // namespace cohort
