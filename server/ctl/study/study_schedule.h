#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "server/ctl/study/matrix.h"

namespace cohort {

// A run in progress.
class StudyJob {
 public:
  virtual ~StudyJob() = default;
  // Makes progress; waits at most `timeout` for an event.
  virtual void Poll(absl::Duration timeout) = 0;
  // True once all its processes have ended.
  virtual bool done() const = 0;
  // Once done: OK if its results are complete, otherwise the failure.
  virtual absl::Status result() const = 0;
  // Stops it early; poll on until it is done.
  virtual void RequestStop() = 0;
};

using StartStudyJob =
    std::function<absl::StatusOr<std::unique_ptr<StudyJob>>(const StudyRun&)>;

// Callbacks of a schedule.
struct ScheduleHooks {
  // A run has ended and is complete.
  std::function<void(const StudyRun&, absl::Duration took)> on_done;
  // A run has failed; if `again`, it will be started once more.
  std::function<void(const StudyRun&, const absl::Status&, bool again)>
      on_failed;
};

// Works through runs in order, several at a time. A run that fails is started
// once more, after all others. A run that fails again, or whose flags are
// refused (InvalidArgument), is left out.
//
// Thread safety: none.
class StudySchedule {
 public:
  // `clock` must outlive it. `parallel` is 1 or more.
  StudySchedule(std::vector<StudyRun> runs, int32_t parallel,
                StartStudyJob start, ScheduleHooks hooks, const Clock& clock);
  ~StudySchedule();

  // Starts runs if possible and polls those in progress, for about `timeout`.
  void Poll(absl::Duration timeout);
  // Starts nothing more and stops the runs in progress; poll on until done.
  void RequestStop();

  bool done() const {
    return jobs_.empty() && (stopping_ || (waiting_.empty() && again_.empty()));
  }
  int32_t running() const { return static_cast<int32_t>(jobs_.size()); }
  // Runs that are not complete and will not be.
  const std::vector<std::string>& failed() const { return failed_; }
  // Estimated time for waiting and running runs. Based on the time of completed
  // runs with as many images per worker, or else of all; infinite until one has
  // ended.
  absl::Duration TimeLeft() const;

 private:
  struct Job {
    StudyRun run;
    Instant begin;
    bool again = false;
    std::unique_ptr<StudyJob> job;
  };
  struct Mean {
    absl::Duration sum;
    int64_t count = 0;
  };

  void StartNext();
  void Conclude(const StudyRun& run, const absl::Status& status, bool again,
                absl::Duration took);
  absl::Duration Expected(const StudyRun& run) const;

  // Fixed after construction.
  const int32_t parallel_;
  const StartStudyJob start_;
  const ScheduleHooks hooks_;
  const Clock& clock_;

  std::deque<StudyRun> waiting_;
  // Runs that have failed once.
  std::deque<StudyRun> again_;
  std::vector<Job> jobs_;
  std::vector<std::string> failed_;
  // Durations by images per worker.
  std::map<int64_t, Mean> took_;
  bool stopping_ = false;
};

}  // namespace cohort
