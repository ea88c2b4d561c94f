#include "server/records/recorded_policy.h"

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "server/records/run_recorder.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"
#include "tests/records/training_status.h"

namespace cohort {
namespace {

class RecordedPolicyTest : public testing::Test {
 protected:
  RecordedPolicyTest() : path_(absl::StrCat(folder_.path(), "/policy.csv")) {}

  // Writes the policy.csv of a run with these changes.
  void Record(const std::vector<PlannedChange>& changes) const {
    RecorderOptions options{.results_dir = folder_.path()};
    options.policies = {{.policy_epoch = 1,
                         .changed = SettingsOf({}),
                         .text = "first",
                         .by_flags = true}};
    for (const PlannedChange& change : changes) {
      options.policies.push_back(
          {.policy_epoch = static_cast<int64_t>(options.policies.size()) + 1,
           .version = change.version,
           .changed = change.values,
           .text = "then, \"so\""});
    }
    std::ostringstream out;
    const SteadyClock clock;
    OkValue(RunRecorder::Open(options, out, clock, [] { return Training(); }));
  }
  void Write(const std::string& text) const { std::ofstream(path_) << text; }

  const TempDir folder_;
  const std::string path_;
};

TEST_F(RecordedPolicyTest, ReadsWhatTheRecorderWrites) {
  const std::vector<PlannedChange> changes = {
      {.version = Version(3),
       .values = {{"shares", "auto:6,2"}, {"learning_rate", "0.02"}}},
      {.version = Version(3), .values = {{"freeze", "a b[0:2, 1];c"}}},
      {.version = Version(9), .values = {{"shares", "none"}}}};
  Record(changes);
  const RecordedPolicy recorded = OkValue(ReadPolicyTable(path_));
  EXPECT_EQ(recorded.start, SettingsOf({}));
  EXPECT_EQ(recorded.changes, changes);
  EXPECT_EQ(OkValue(PlanRecorded(recorded, {})), changes);
}

TEST_F(RecordedPolicyTest, AChangeThatDoesNotFitTheFlagsIsRefused) {
  Record({{.version = Version(3), .values = {{"shares", "6,2"}}}});
  const RecordedPolicy recorded = OkValue(ReadPolicyTable(path_));
  EXPECT_THAT(PlanRecorded(recorded, {.workers = 3}),
              IsError(kInvalidArgument, "the change at step 3"));
}

TEST_F(RecordedPolicyTest, OtherFilesAreRefused) {
  EXPECT_THAT(ReadPolicyTable(path_),
              IsError(kInvalidArgument, "--policy_from"));
  Write("version,loss\n1,2\n");
  EXPECT_THAT(ReadPolicyTable(path_),
              IsError(kInvalidArgument, "want the policy.csv"));
  const std::string header =
      "policy_epoch,version,samples,seconds,changes,text,run_name\n"
      "1,0,0,0,learning_rate=0.1,first,run\n";
  for (const char* row :
       {"2,-1,0,0,shares=none,x,run", "2,one,0,0,shares=none,x,run",
        "2,1,0,0,shares=some,x,run", "2,1,0,0,never=1,x,run", "2,1"}) {
    Write(absl::StrCat(header, row, "\n"));
    EXPECT_THAT(ReadPolicyTable(path_),
                IsError(kInvalidArgument, "policy.csv, line 3"))
        << row;
  }
  Write(absl::StrCat(header, "2,5,0,0,shares=none,x,run\n",
                     "3,4,0,0,shares=none,x,run\n"));
  EXPECT_THAT(ReadPolicyTable(path_), IsError(kInvalidArgument, "line 4"));
}

}  // namespace
}  // namespace cohort
