#include "server/ctl/study/study_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<StudyRun> Runs(int64_t count) {
  std::vector<StudyRun> runs;
  for (int64_t seed = 1; seed <= count; ++seed) {
    runs.push_back(
        {.policy = {.aggregation = "sync", .normalization = "local"},
         .condition = {.order = "shuffled", .workers = 2, .batch_size = seed},
         .seed = seed});
  }
  return runs;
}

class FakeClock final : public Clock {
 public:
  Instant Now() const override { return now_; }
  void Advance(absl::Duration duration) { now_ += duration; }

 private:
  Instant now_;
};

// A schedule whose runs take two polls each, and fail if the test says so.
class ScheduleTest : public testing::Test {
 protected:
  class Job final : public StudyJob {
   public:
    Job(ScheduleTest& test, absl::Status result)
        : test_(test), result_(std::move(result)) {
      ++test_.running_;
      test_.running_max_ = std::max(test_.running_max_, test_.running_);
    }
    ~Job() override = default;
    void Poll(absl::Duration /*timeout*/) override {
      if (++polls_ == 2) --test_.running_;
    }
    bool done() const override { return polls_ >= 2; }
    absl::Status result() const override { return result_; }
    void RequestStop() override { result_ = absl::CancelledError("stopped"); }

   private:
    ScheduleTest& test_;
    absl::Status result_;
    int32_t polls_ = 0;
  };

  StudySchedule Make(int64_t runs, int32_t parallel) {
    return StudySchedule(
        Runs(runs), parallel,
        [this](const StudyRun& run) {
          started_.push_back(run.seed);
          absl::Status result;
          if (failures_[run.seed] > 0) {
            --failures_[run.seed];
            result = absl::InternalError("worker 0 ended");
          } else if (run.seed == refused_) {
            result = absl::InvalidArgumentError("unknown flag --x");
          }
          return std::make_unique<Job>(*this, result);
        },
        {.on_done = [this](
                        const StudyRun& run,
                        absl::Duration /*took*/) { done_.push_back(run.seed); },
         .on_failed =
             [this](const StudyRun& run, const absl::Status& /*why*/,
                    bool again) {
               told_.push_back(absl::StrCat(run.seed, again ? " again" : ""));
             }},
        clock_);
  }

  void Finish(StudySchedule& schedule) {
    for (int polls = 0; !schedule.done(); ++polls) {
      ASSERT_LT(polls, 1000);
      clock_.Advance(absl::Seconds(1));
      schedule.Poll(absl::ZeroDuration());
    }
  }

  FakeClock clock_;
  std::map<int64_t, int32_t> failures_;
  int64_t refused_ = 0;
  std::vector<int64_t> started_;
  std::vector<int64_t> done_;
  std::vector<std::string> told_;
  int32_t running_ = 0;
  int32_t running_max_ = 0;
};

TEST_F(ScheduleTest, RunsGoInOrderAndNoMoreAtATimeThanWanted) {
  StudySchedule schedule = Make(5, 2);
  Finish(schedule);
  EXPECT_THAT(started_, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(done_, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(running_max_, 2);
  EXPECT_THAT(schedule.failed(), IsEmpty());
}

TEST_F(ScheduleTest, AFailedRunIsStartedOnceMoreAfterTheOthers) {
  failures_[1] = 1;
  StudySchedule schedule = Make(3, 1);
  Finish(schedule);
  EXPECT_THAT(started_, ElementsAre(1, 2, 3, 1));
  EXPECT_THAT(done_, ElementsAre(2, 3, 1));
  EXPECT_THAT(told_, ElementsAre("1 again"));
  EXPECT_THAT(schedule.failed(), IsEmpty());
}

TEST_F(ScheduleTest, ARunThatFailsTwiceDoesNotLoseTheOthers) {
  failures_[2] = 9;
  StudySchedule schedule = Make(3, 1);
  Finish(schedule);
  EXPECT_THAT(started_, ElementsAre(1, 2, 3, 2));
  EXPECT_THAT(done_, ElementsAre(1, 3));
  EXPECT_THAT(told_, ElementsAre("2 again", "2"));
  EXPECT_THAT(schedule.failed(), ElementsAre("sync-local-shuffled-w2-b2-s2"));
}

TEST_F(ScheduleTest, ARefusedRunIsNotTriedAgain) {
  refused_ = 2;
  StudySchedule schedule = Make(3, 1);
  Finish(schedule);
  EXPECT_THAT(started_, ElementsAre(1, 2, 3));
  EXPECT_THAT(told_, ElementsAre("2"));
  EXPECT_THAT(schedule.failed(), ElementsAre("sync-local-shuffled-w2-b2-s2"));
}

TEST_F(ScheduleTest, AStopEndsWhatRunsAndStartsNothing) {
  StudySchedule schedule = Make(3, 1);
  schedule.Poll(absl::ZeroDuration());
  schedule.RequestStop();
  Finish(schedule);
  EXPECT_THAT(started_, ElementsAre(1));
  EXPECT_THAT(done_, IsEmpty());
  // The run itself had not failed.
  EXPECT_THAT(told_, IsEmpty());
  EXPECT_THAT(schedule.failed(), IsEmpty());
}

TEST_F(ScheduleTest, TimeLeftFollowsFromWhatRunsTook) {
  StudySchedule schedule = Make(4, 1);
  EXPECT_EQ(schedule.TimeLeft(), absl::InfiniteDuration());
  // Starts run 1, which ends with the second poll, 10 s later.
  schedule.Poll(absl::ZeroDuration());
  clock_.Advance(absl::Seconds(10));
  schedule.Poll(absl::ZeroDuration());
  ASSERT_THAT(done_, ElementsAre(1));
  EXPECT_EQ(schedule.TimeLeft(), absl::Seconds(30));
  schedule.Poll(absl::ZeroDuration());
  clock_.Advance(absl::Seconds(4));
  EXPECT_EQ(schedule.TimeLeft(), absl::Seconds(26));
}

}  // namespace
}  // namespace cohort
