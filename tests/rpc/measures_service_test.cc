// The lines, files and status that a server makes from its workers' counts.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "server/main/server.h"
#include "tests/fakes/temp_dir.h"
#include "tests/rpc/hand_worker.h"
#include "tests/rpc/service_fixture.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct ClassCounts {
  int64_t intersection = 0;
  int64_t predicted = 0;
  int64_t actual = 0;
};

// One image with a label a pixel; each valid one has a loss of 0.5.
v1::ReportRequest Pixels(const std::vector<ClassCounts>& classes) {
  v1::ReportRequest counts;
  counts.set_samples(1);
  for (const ClassCounts& of : classes) {
    v1::ClassSums* to = counts.add_classes();
    to->set_intersection(of.intersection);
    to->set_predicted(of.predicted);
    to->set_actual(of.actual);
    counts.set_correct(counts.correct() + of.intersection);
    counts.set_labels(counts.labels() + of.actual);
  }
  counts.set_loss_sum(0.5 * static_cast<double>(counts.labels()));
  counts.set_loss_weight(static_cast<double>(counts.labels()));
  return counts;
}

// Number of commas outside quotes, plus one.
int64_t Columns(const std::string& line) {
  bool quoted = false;
  int64_t columns = 1;
  for (const char c : line) {
    if (c == '"') quoted = !quoted;
    if (c == ',' && !quoted) ++columns;
  }
  return columns;
}

class MeasuresServiceTest : public ServiceTest {
 protected:
  // The evaluation that rank i is given after its push.
  v1::Assignment AwaitTask(size_t i) {
    const v1::Assignment next = AwaitVerdict(exchanges_[i]).next();
    if (next.kind() == v1::ASSIGNMENT_KIND_EVALUATE) return next;
    return workers_[i]->Await(v1::ASSIGNMENT_KIND_EVALUATE).value();
  }
  // One step, then rank i reports counts[i] for one image of the two.
  void StepAndReport(const ServerOptions& options,
                     const std::vector<v1::ReportRequest>& counts) {
    StartWithTwoWorkers(options);
    TrainOneStep();
    for (size_t i = 0; i < 2; ++i) {
      v1::Assignment next;
      const grpc::Status status =
          workers_[i]->Report(AwaitTask(i), counts[i], next);
      ASSERT_TRUE(status.ok()) << status.error_message();
    }
  }
};

// Class 0: 3 correct, 5 predictions, 3 labels: 3 / 5. Class 1: 2 / (2 + 4 - 2).
// Class 2 does not occur. 5 of 7 valid pixels are right.
std::vector<v1::ReportRequest> TwoImages() {
  return {Pixels({{2, 3, 2}, {1, 1, 2}, {0, 0, 0}}),
          Pixels({{1, 2, 1}, {1, 1, 2}, {0, 0, 0}})};
}

TEST_F(MeasuresServiceTest, ARunOverPixelsEndsWithItsMeanIou) {
  ServerOptions options = TinyOptions();
  options.files.results_dir = TemporaryFolder("results");
  StepAndReport(options, TwoImages());
  EXPECT_EQ(server_->Wait().outcome, RunOutcome::kFinished);
  EXPECT_THAT(out_.str(), HasSubstr("\nepoch 1: test mIoU 55.0 %, pixel "
                                    "accuracy 71.4 %, loss 0.5000, "));
  EXPECT_THAT(out_.str(), EndsWith("\n"
                                   "test IoU of class 0 60.0 %\n"
                                   "test IoU of class 1 50.0 %\n"
                                   "test IoU of class 2 none\n"
                                   "test pixel accuracy 71.4 %\n"
                                   "test mIoU 55.0 %\n"));
  const std::string& folder = options.files.results_dir;
  EXPECT_THAT(ReadLines(folder + "/class_iou.csv"),
              ElementsAre("version,epoch,bn_statistics,class,iou,intersection,"
                          "predicted,actual",
                          "1,1,sync,0,0.600000,3,5,3",
                          "1,1,sync,1,0.500000,2,2,4", "1,1,sync,2,,0,0,0"));
  const std::vector<std::string> history = ReadLines(folder + "/history.csv");
  ASSERT_GE(history.size(), 2u);
  EXPECT_THAT(history[0], EndsWith(",bn_statistics,test_top5_accuracy,"
                                   "test_miou,local_steps"));
  EXPECT_TRUE(
      std::any_of(history.begin(), history.end(), [](const std::string& row) {
        return row.find(",0.500000,0.714286,") != std::string::npos &&
               row.ends_with(",sync,,0.550000,");
      }));
  for (const std::string& row : history) {
    EXPECT_EQ(Columns(row), Columns(history[0])) << row;
  }
}

TEST_F(MeasuresServiceTest, ARunOverManyClassesTellsItsTopFive) {
  ServerOptions options = TinyOptions();
  options.files.results_dir = TemporaryFolder("results");
  // One of two is right; both are among the five highest scores.
  v1::ReportRequest counts;
  counts.set_samples(1);
  counts.set_loss_sum(0.25);
  counts.set_loss_weight(1);
  counts.set_labels(1);
  counts.set_top5_correct(1);
  std::vector<v1::ReportRequest> both = {counts, counts};
  both[1].set_correct(1);
  StepAndReport(options, both);
  EXPECT_EQ(server_->Wait().outcome, RunOutcome::kFinished);
  EXPECT_THAT(out_.str(), HasSubstr("\nepoch 1: test accuracy 50.0 %, top-5 "
                                    "accuracy 100.0 %, loss 0.2500, "));
  EXPECT_THAT(out_.str(), EndsWith("\ntest top-5 accuracy 100.0 %\n"
                                   "test accuracy 50.0 %\n"));
  const std::vector<std::string> history =
      ReadLines(options.files.results_dir + "/history.csv");
  EXPECT_TRUE(
      std::any_of(history.begin(), history.end(), [](const std::string& row) {
        return row.ends_with(",sync,1.000000,,");
      }));
  EXPECT_TRUE(ReadLines(options.files.results_dir + "/class_iou.csv").empty());
}

TEST_F(MeasuresServiceTest, StatusHasTheNewestMeasures) {
  ServerOptions options = TinyOptions();
  options.coordinator.epochs = 2;
  StepAndReport(options, TwoImages());
  const v1::Status status = StatusFor(*workers_[0]);
  EXPECT_DOUBLE_EQ(status.test_accuracy(), 5.0 / 7);
  EXPECT_FALSE(status.has_test_top5_accuracy());
  EXPECT_DOUBLE_EQ(status.test_miou(), 0.55);
  ASSERT_EQ(status.test_class_iou_size(), 3);
  EXPECT_DOUBLE_EQ(status.test_class_iou(0).iou(), 0.6);
  EXPECT_FALSE(status.test_class_iou(2).has_iou());
}

TEST_F(MeasuresServiceTest, CountsThatDoNotAddUpAreRefused) {
  StartWithTwoWorkers(TinyOptions());
  TrainOneStep();
  const v1::Assignment task = AwaitTask(0);
  v1::ReportRequest counts = TwoImages()[0];
  counts.set_labels(5);
  v1::Assignment next;
  const grpc::Status status = workers_[0]->Report(task, counts, next);
  EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), StartsWith("classes: got 3 of 4 labels"));
  EXPECT_TRUE(workers_[0]->Report(task, TwoImages()[0], next).ok());
}

}  // namespace
}  // namespace cohort
