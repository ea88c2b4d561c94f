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

// A run that goes on.
class StudyJob {
 public:
  virtual ~StudyJob() = default;
  // Lets it go on; waits at most `timeout` for something to happen.
  virtual void Poll(absl::Duration timeout) = 0;
  // All its processes have ended.
  virtual bool done() const = 0;
  // Once done: whether its results are whole, and what went wrong if not.
  virtual absl::Status result() const = 0;
  // Ends it early; poll on until it is done.
  virtual void RequestStop() = 0;
};

using StartStudyJob =
    std::function<absl::StatusOr<std::unique_ptr<StudyJob>>(const StudyRun&)>;

// What one hears of a schedule.
struct ScheduleHooks {
  // A run has ended and is whole.
  std::function<void(const StudyRun&, absl::Duration took)> on_done;
  // It has not; `again`: it is started once more.
  std::function<void(const StudyRun&, const absl::Status&, bool again)>
      on_failed;
};

// Works through runs, several at a time, in their order. A run that fails is
// started once more, after all others; one that fails again, or whose flags are
// refused (InvalidArgument), is left out.
//
// Thread safety: none.
class StudySchedule {
 public:
  // `clock` must outlive it. `parallel` is 1 or more.
  StudySchedule(std::vector<StudyRun> runs, int32_t parallel,
                StartStudyJob start, ScheduleHooks hooks, const Clock& clock);
  ~StudySchedule();

  // Starts what may be started and polls what runs, for about `timeout`.
  void Poll(absl::Duration timeout);
  // Nothing more is started, and what runs is ended; poll on until done.
  void RequestStop();

  bool done() const {
    return jobs_.empty() && (stopping_ || (waiting_.empty() && again_.empty()));
  }
  int32_t running() const { return static_cast<int32_t>(jobs_.size()); }
  // Not whole, and not going to be.
  const std::vector<std::string>& failed() const { return failed_; }
  // Of what waits and runs. From what runs with as many images per worker took,
  // else from what all took; infinite as long as nothing has ended.
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
  // Failed once.
  std::deque<StudyRun> again_;
  std::vector<Job> jobs_;
  std::vector<std::string> failed_;
  // By images per worker.
  std::map<int64_t, Mean> took_;
  bool stopping_ = false;
};

}  // namespace cohort
