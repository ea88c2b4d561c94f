#include "server/records/run_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/core/settings/settings.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"
#include "tests/records/training_status.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::vector<std::string> Lines(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

class RunRecorderTest : public testing::Test {
 protected:
  RunRecorderTest() { options_.results_dir = folder_.path(); }

  std::unique_ptr<RunRecorder> Begin() {
    auto recorder = OkValue(
        RunRecorder::Open(options_, out_, clock_, [] { return Training(); }));
    recorder->Begin();
    return recorder;
  }

  const TempDir folder_;
  std::ostringstream out_;
  const SteadyClock clock_;
  RecorderOptions options_;
};

TEST_F(RunRecorderTest, RowsHoldMeansByLossWeightAndLabels) {
  const std::unique_ptr<RunRecorder> recorder = Begin();
  // Weight 1 with loss 1, and weight 3 with loss 5: mean 4; 2 of 8 labels. The
  // skipped commit adds nothing, and neither does the one whose labels were all
  // ignored.
  recorder->Committed({.version = Version(1),
                       .samples = 1,
                       .commit_samples = 1,
                       .loss = 1,
                       .accuracy = 1,
                       .loss_weight = 1,
                       .labels = 2,
                       .learning_rate = 0.5});
  recorder->Committed({.version = Version(2),
                       .samples = 4,
                       .commit_samples = 3,
                       .loss = 5,
                       .accuracy = 0,
                       .loss_weight = 3,
                       .labels = 6,
                       .learning_rate = 0.25});
  recorder->Committed(
      {.version = Version(3), .samples = 4, .loss = 9, .skipped = true});
  recorder->Committed(
      {.version = Version(4), .samples = 9, .commit_samples = 5});
  recorder->Finish();

  const std::string row = Lines(folder_.File("history.csv")).at(1);
  EXPECT_THAT(row, StartsWith("4,1,9,"));
  EXPECT_THAT(row, HasSubstr(",4.000000,0.250000,"));
  EXPECT_THAT(
      row, EndsWith(",2,\"sync, global normalisation, sync statistics\",,,,"));
}

TEST_F(RunRecorderTest, MeasuresOfTheTrainingProgramHaveATableOfTheirOwn) {
  const std::unique_ptr<RunRecorder> recorder = Begin();
  EXPECT_FALSE(std::filesystem::exists(folder_.File("measures.csv")));
  recorder->Committed({.version = Version(1),
                       .samples = 2,
                       .measures = {{.name = "iou", .sum = 1, .weight = 2}}});
  recorder->Committed({.version = Version(2),
                       .samples = 4,
                       .measures = {{.name = "dice", .sum = 3, .weight = 1},
                                    {.name = "iou", .sum = 5, .weight = 6}}});
  // A skipped step changed nothing.
  recorder->Committed({.version = Version(3),
                       .samples = 6,
                       .measures = {{.name = "iou", .sum = 9, .weight = 1}},
                       .skipped = true});
  recorder->Finish();
  EXPECT_THAT(Lines(folder_.File("measures.csv")),
              ElementsAre("version,samples,measure,mean,weight", "3,6,dice,3,1",
                          "3,6,iou,0.75,8"));
}

TEST_F(RunRecorderTest, ARowNamesTheMostWorkersOfItsSteps) {
  // The status is read when more have left, and knows two.
  const std::unique_ptr<RunRecorder> recorder = Begin();
  recorder->Committed({.version = Version(1), .members = {Rank(0)}});
  recorder->Committed(
      {.version = Version(2), .members = {Rank(0), Rank(1), Rank(4), Rank(6)}});
  recorder->Committed(
      {.version = Version(3), .members = {Rank(0), Rank(4), Rank(6)}});
  recorder->Finish();
  const std::vector<std::string> lines = Lines(folder_.File("history.csv"));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[1], HasSubstr(",4,\"sync,"));
}

// The initial policy of a run.
PolicyRecord FirstPolicy() {
  return {.policy_epoch = 1, .changed = SettingsOf({}), .text = "sync"};
}

PolicyRecord ToAsync() {
  return {.policy_epoch = 2,
          .version = Version(1),
          .samples = 4,
          .changed = {{"aggregation", "async"}, {"normalization", "local"}},
          .text = "a \"text\", with a comma"};
}

TEST_F(RunRecorderTest, NoRowHasCommitsOfTwoPolicies) {
  options_.run.run_name = "nightly";
  options_.policies = {FirstPolicy()};
  const std::unique_ptr<RunRecorder> recorder = Begin();
  recorder->Committed(
      {.version = Version(1), .samples = 4, .commit_samples = 4});
  recorder->PolicyChanged(ToAsync());
  // Reported twice, recorded once.
  recorder->PolicyChanged(ToAsync());
  recorder->Committed(
      {.version = Version(2), .samples = 6, .commit_samples = 2});
  recorder->Finish();

  const std::vector<std::string> history = Lines(folder_.File("history.csv"));
  ASSERT_EQ(history.size(), 3u);
  EXPECT_THAT(history[1], StartsWith("1,1,4,"));
  EXPECT_THAT(history[1], HasSubstr("\"sync, global"));
  EXPECT_THAT(history[2], StartsWith("2,1,6,"));
  EXPECT_THAT(history[2], HasSubstr("\"async, local"));
  const std::vector<std::string> policy = Lines(folder_.File("policy.csv"));
  ASSERT_EQ(policy.size(), 3u);
  EXPECT_THAT(policy[1], StartsWith("1,0,0,0.000,\""));
  EXPECT_THAT(policy[1], HasSubstr(" aggregation=sync "));
  EXPECT_THAT(policy[2], StartsWith("2,1,4,"));
  EXPECT_THAT(policy[2], EndsWith(",\"aggregation=async normalization=local\","
                                  "\"a \"\"text\"\", with a comma\",nightly"));
  EXPECT_THAT(
      out_.str(),
      HasSubstr("policy sync -> async, local normalisation at step 1\n"));
}

// The earlier results may be in another folder_, or in this one.
TEST_F(RunRecorderTest, ContinuedRunHasEachChangeOnce) {
  PolicyRecord resumed{.policy_epoch = 3,
                       .version = Version(5),
                       .samples = 20,
                       .changed = {{"learning_rate", "0.5"}},
                       .text = "continued"};
  options_.restored = Version(5);
  options_.policies = {FirstPolicy(), ToAsync(), resumed};
  for (int times = 0; times < 2; ++times) {
    out_.str("");
    // In the second round the third policy is old too.
    options_.policies_before = times == 0 ? 2 : 3;
    const std::unique_ptr<RunRecorder> recorder = Begin();
    recorder->Finish();
    EXPECT_EQ(out_.str().find("policy learning_rate 0.1 -> 0.5 at step 5") !=
                  std::string::npos,
              times == 0);
    EXPECT_THAT(out_.str(), Not(HasSubstr("policy sync -> async")));
  }
  const std::vector<std::string> policy = Lines(folder_.File("policy.csv"));
  ASSERT_EQ(policy.size(), 4u);
  // This process does not know the time of the change.
  EXPECT_THAT(policy[2], StartsWith("2,1,4,,\""));
  EXPECT_THAT(policy[3], StartsWith("3,5,20,0.000,\"learning_rate=0.5\""));
}

// A run that reached version 9 after its checkpoint of version 4, with both
// kinds evaluated at 4, and was killed while it wrote.
TEST_F(RunRecorderTest, ContinuedFilesLoseWhatIsComputedAgain) {
  const std::string head = "version,epoch,samples,seconds,train_loss,...\n";
  const std::string policy = ",\"sync, with a \"\"quote\"\"\",";
  WriteText(folder_.File("history.csv"),
            absl::StrCat(head, "3,1,12,20.500,0.5,0.5,0.1,9,,,2", policy,
                         ",,,\n4,1,16,30.250,0.4,0.5,0.1,9,0.7,0.6,2", policy,
                         "sync,,,\n4,1,,30.250,,,,,0.8,0.5,2", policy,
                         "chief,,,\n9,2,36,70.000,0.4,0.5,0.1,9,,,2", policy,
                         ",,,\n9,2,36,7"));
  WriteText(folder_.File("class_iou.csv"),
            "version,epoch,bn_statistics,class,iou\n"
            "4,1,sync,0,0.5\n9,2,sync,0,0.75\n");
  WriteText(folder_.File("policy.csv"),
            "policy_epoch,version\n1,0,a\n2,1,b\n3,8,never came about\n");
  options_.restored = Version(4);
  options_.policies = {FirstPolicy(), ToAsync()};
  options_.policies_before = 2;
  const std::unique_ptr<RunRecorder> recorder = Begin();
  const EarlierHistory& earlier = recorder->earlier();
  EXPECT_EQ(earlier.elapsed, absl::Seconds(30.25));
  ASSERT_EQ(earlier.training.size(), 1u);
  EXPECT_EQ(earlier.training[0].version, 3);
  ASSERT_EQ(earlier.evaluations.size(), 2u);
  EXPECT_EQ(earlier.evaluations[1].statistics, "chief");
  ASSERT_TRUE(earlier.test.has_value());
  EXPECT_EQ(earlier.test->accuracy, 0.6);
  // The first kind is evaluated again, and another kind for the first time.
  recorder->Evaluated({.version = Version(4),
                       .epochs = 1,
                       .results = {{.statistics = StatisticsKind::kSync},
                                   {.statistics = StatisticsKind::kAsync}}});
  recorder->Committed(
      {.version = Version(5), .samples = 20, .commit_samples = 4});
  recorder->Finish();

  const std::vector<std::string> history = Lines(folder_.File("history.csv"));
  ASSERT_EQ(history.size(), 6u);
  EXPECT_THAT(history[3], HasSubstr("chief"));
  EXPECT_THAT(history[4], StartsWith("4,1,,30."));
  EXPECT_THAT(history[4], HasSubstr(",async,"));
  EXPECT_THAT(history[5], StartsWith("5,1,20,30."));
  EXPECT_EQ(Lines(folder_.File("class_iou.csv")).size(), 2u);
  EXPECT_THAT(Lines(folder_.File("policy.csv")),
              ElementsAre("policy_epoch,version", "1,0,a", "2,1,b"));
}

}  // namespace
}  // namespace cohort
