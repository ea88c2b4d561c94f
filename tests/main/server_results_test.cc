// The results of a run, and its continuation, over a real connection.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/formats/file_system.h"
#include "server/checkpoint/checkpoint.h"
#include "server/main/server.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"
#include "tests/rpc/hand_worker.h"
#include "tests/rpc/service_fixture.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST_F(ServiceTest, RunEndsWithEvaluationAndResults) {
  ServerOptions options = TinyOptions();
  options.files.results_dir = TemporaryFolder("results");
  StartWithTwoWorkers(options);
  TrainOneStep();
  // One of the two test samples is classified correctly.
  for (size_t i = 0; i < 2; ++i) {
    v1::Assignment task = AwaitVerdict(exchanges_[i]).next();
    if (task.kind() != v1::ASSIGNMENT_KIND_EVALUATE) {
      const auto later =
          OkValue(workers_[i]->Await(v1::ASSIGNMENT_KIND_EVALUATE));
      task = later;
    }
    EXPECT_EQ(task.version(), 1);
    v1::Assignment next;
    ASSERT_TRUE(workers_[i]->Report(task, static_cast<int64_t>(i), next).ok());
  }
  EXPECT_TRUE(workers_[0]->Await(v1::ASSIGNMENT_KIND_FINISHED).has_value());

  const RunSummary summary = server_->Wait();
  EXPECT_EQ(summary.outcome, RunOutcome::kFinished);
  ASSERT_TRUE(summary.last_evaluation.has_value());
  EXPECT_DOUBLE_EQ(summary.last_evaluation->accuracy(), 0.5);
  EXPECT_EQ(summary.snapshot->version, Version(1));
  EXPECT_THAT(summary.snapshot->weights[0]->span(),
              ElementsAre(9.0f, 8.5f, 8.0f, 7.5f));
  EXPECT_THAT(out_.str(), HasSubstr("epoch 1: test accuracy 50.0 %"));
  EXPECT_THAT(out_.str(), EndsWith("test accuracy 50.0 %\n"));
  EXPECT_TRUE(std::filesystem::exists(options.files.results_dir +
                                      "/model.safetensors"));
  // The saved page and its numbers are those of the end.
  const nlohmann::json status = nlohmann::json::parse(
      std::ifstream(options.files.results_dir + "/status.json"));
  EXPECT_EQ(status["ended"], true);
  EXPECT_EQ(status["version"], 1);
  EXPECT_EQ(status["test_accuracy"], 0.5);
  EXPECT_EQ(status["run_id"], server_->run_id());
  EXPECT_EQ(status["workers"][0]["state"], "finished");
  EXPECT_EQ(status["checkpoint"]["model_version"], 1);
  EXPECT_TRUE(
      std::filesystem::exists(options.files.results_dir + "/report.html"));
  const std::vector<std::string> history =
      ReadLines(options.files.results_dir + "/history.csv");
  EXPECT_THAT(history.at(0),
              HasSubstr("version,epoch,samples,seconds,train_loss"));
  // Both losses are 1 over 2 samples each: 0.5 a sample, and half of the labels
  // correct.
  EXPECT_THAT(history.at(1), HasSubstr("1,1,4,"));
  EXPECT_THAT(history.at(1), HasSubstr(",0.500000,0.500000,0.5,"));
}

// One step under local normalisation: rank 0 sees {0, 2} and rank 1 {2, 4}.
// Then the moments of two batches, {0, 2} and {6, 8}, are collected: mean 4, M2
// 40.
TEST_F(ServiceTest, KindsOfStatisticsAreCollectedEvaluatedAndReadByName) {
  ServerOptions options = TinyOptions();
  options.files.results_dir = TemporaryFolder("results");
  options.files.checkpoint_dir = TemporaryFolder("state");
  options.coordinator.checkpoint_every = 1;
  options.coordinator.policy.normalization = NormalizationKind::kLocal;
  options.coordinator.policy.statistics = {
      StatisticsKind::kSync, StatisticsKind::kChief, StatisticsKind::kAfter};
  StartWithTwoWorkers(options, NormalisedLayout());
  for (size_t i = 0; i < 2; ++i) {
    exchanges_.push_back(workers_[i]->OpenExchange());
    exchanges_[i].Write(workers_[i]->Opening(assignments_[i], 2));
    exchanges_[i].Write(workers_[i]->Gradient(assignments_[i], {0, 0, 0, 0}));
    v1::ExchangeRequest closing = workers_[i]->Closing(assignments_[i], 1);
    v1::CallMoments* call = closing.mutable_closing()->add_moments();
    call->set_count(2);
    call->add_mean(i == 0 ? 1 : 3);
    call->add_m2(2);
    exchanges_[i].Write(closing);
  }
  v1::Assignment task;
  for (size_t i = 0; i < 2; ++i) {
    const auto collect =
        OkValue(workers_[i]->Await(v1::ASSIGNMENT_KIND_COLLECT_MOMENTS));
    EXPECT_EQ(collect.version(), 1);
    EXPECT_EQ(collect.range_end() - collect.range_begin(), 2);
    const bool first = collect.range_begin() == 0;
    ExpectOk(workers_[i]->ReportMoments(collect, 2, first ? 1 : 7, 2, task));
  }
  EXPECT_EQ(task.kind(), v1::ASSIGNMENT_KIND_EVALUATE);

  const auto mean_of = [&](const std::string& kind) {
    v1::PullRequest request;
    request.set_run_id(server_->run_id());
    request.set_version(1);
    request.set_statistics(true);
    request.set_statistics_kind(kind);
    std::vector<v1::PullReply> replies;
    const grpc::Status status = workers_[0]->Pull(request, replies);
    if (kind == "async") {
      EXPECT_THAT(status,
                  EndedWith(grpc::INVALID_ARGUMENT,
                            "want one of sync,chief,after at version 1"));
      return 0.0;
    }
    EXPECT_TRUE(status.ok()) << status.error_message();
    return replies.at(0).header().statistics(0).mean(0);
  };
  EXPECT_FLOAT_EQ(mean_of("sync"), 0.1 * 2);
  EXPECT_DOUBLE_EQ(mean_of(""), mean_of("sync"));
  EXPECT_FLOAT_EQ(mean_of("chief"), 0.1 * 1);
  EXPECT_DOUBLE_EQ(mean_of("after"), 4);
  mean_of("async");

  // With chief both test samples are wrong, with the others both are right.
  const auto report_all = [this](size_t i, v1::Assignment evaluate) {
    while (evaluate.kind() == v1::ASSIGNMENT_KIND_EVALUATE) {
      const int64_t correct = evaluate.statistics_kind() == "chief" ? 0 : 1;
      v1::Assignment next;
      ASSERT_TRUE(workers_[i]->Report(evaluate, correct, next).ok());
      evaluate = next;
    }
  };
  const auto other = OkValue(workers_[0]->Await(v1::ASSIGNMENT_KIND_EVALUATE));
  report_all(0, other);
  report_all(1, task);

  EXPECT_EQ(server_->Wait().outcome, RunOutcome::kFinished);
  EXPECT_THAT(out_.str(),
              EndsWith("test accuracy with sync statistics 100.0 %\n"
                       "test accuracy with chief statistics 0.0 %\n"
                       "test accuracy with after statistics 100.0 %\n"
                       "test accuracy 100.0 %\n"));
  const std::vector<std::string> rows =
      ReadLines(options.files.results_dir + "/history.csv");
  ASSERT_EQ(rows.size(), 5u);
  EXPECT_THAT(
      rows[0],
      EndsWith(",bn_statistics,test_top5_accuracy,test_miou,local_steps"));
  // One row for each kind. The first has the means of the epoch, and the
  // commits.
  EXPECT_THAT(rows[1], HasSubstr(",1.000000,1.000000,2,"));
  EXPECT_THAT(rows[1], EndsWith(",sync,,,"));
  EXPECT_THAT(rows[2], StartsWith("1,1,4,"));
  EXPECT_THAT(rows[2], HasSubstr(",,,,,1.000000,0.000000,2,"));
  EXPECT_THAT(rows[2], EndsWith(",chief,,,"));
  EXPECT_THAT(rows[3], EndsWith(",after,,,"));
  EXPECT_THAT(rows[4], EndsWith(",,,"));
  // The commit's checkpoint had no `after` statistics; the last one does.
  std::vector<std::string> problems;
  const auto checkpoint = OkValue(LoadNewestCheckpoint(
      RealFileSystem(), options.files.checkpoint_dir, problems));
  const SharedSnapshot& kept = checkpoint->state.snapshot;
  EXPECT_EQ(kept->version, Version(1));
  ASSERT_EQ(kept->statistics->size(), 3u);
  EXPECT_EQ(kept->statistics->back().collected, Version(1));
  EXPECT_DOUBLE_EQ(kept->statistics->back().layers[0].mean[0], 4);
}

TEST_F(ServiceTest, OperatorsMayCollectStatisticsAtAnyTime) {
  ServerOptions options = TinyOptions();
  options.coordinator.policy.statistics = {StatisticsKind::kSync,
                                           StatisticsKind::kAfter};
  StartWithTwoWorkers(options, NormalisedLayout());
  v1::CollectStatisticsRequest request;
  request.set_run_id("other");
  v1::CollectStatisticsReply reply;
  {
    TimedContext context;
    EXPECT_EQ(workers_[0]
                  ->admin()
                  .CollectStatistics(&context, request, &reply)
                  .error_code(),
              grpc::FAILED_PRECONDITION);
  }
  request.clear_run_id();
  TimedContext context;
  ExpectOk(workers_[0]->admin().CollectStatistics(&context, request, &reply));
  EXPECT_EQ(reply.version(), 0);
  EXPECT_EQ(reply.batches(), 1);
}

TEST_F(ServiceTest, RunContinuesFromItsCheckpoint) {
  ServerOptions options = TinyOptions();
  options.coordinator.epochs = 2;
  options.files.checkpoint_dir = TemporaryFolder("state");
  options.files.results_dir = TemporaryFolder("results");
  StartWithTwoWorkers(options);
  TrainOneStep();
  AwaitVerdict(exchanges_[0]);
  AwaitVerdict(exchanges_[1]);
  const std::string run_id = server_->run_id();
  const int64_t incarnation = workers_[1]->joined().incarnation();
  server_->Stop();
  exchanges_.clear();
  workers_.clear();
  server_.reset();

  // Without --resume the directory is refused: it holds another run.
  EXPECT_THAT(StartServer(options, out_),
              IsError(kFailedPrecondition, "--resume"));

  options.files.resume = true;
  Start(options);
  EXPECT_EQ(server_->run_id(), run_id);
  HandWorker worker(server_->address());
  ASSERT_TRUE(worker.Join(0).ok());
  EXPECT_EQ(worker.joined().version(), 1);
  EXPECT_GT(worker.joined().incarnation(), incarnation);
  v1::PullRequest request;
  request.set_run_id(run_id);
  request.set_weights(true);
  std::vector<v1::PullReply> replies;
  ASSERT_TRUE(worker.Pull(request, replies).ok());
  EXPECT_THAT(FloatsOf(replies[1].payload()),
              ElementsAre(9.0f, 8.5f, 8.0f, 7.5f));
  server_->Stop();
  server_.reset();
  // The history continues under the header it has: one row for the step.
  EXPECT_THAT(ReadLines(options.files.results_dir + "/history.csv"),
              ElementsAre(HasSubstr("version,epoch"), HasSubstr("1,1,4,")));

  options.coordinator.seed += 1;
  EXPECT_THAT(std::string(StartServer(options, out_).status().message()),
              HasSubstr("--seed"));
}

}  // namespace
}  // namespace cohort
