#include "server/ctl/study/study_schedule.h"

#include <algorithm>
#include <utility>

namespace cohort {

StudySchedule::StudySchedule(std::vector<StudyRun> runs, int32_t parallel,
                             StartStudyJob start, ScheduleHooks hooks,
                             const Clock& clock)
    : parallel_(parallel),
      start_(std::move(start)),
      hooks_(std::move(hooks)),
      clock_(clock),
      waiting_(runs.begin(), runs.end()) {}

StudySchedule::~StudySchedule() = default;

void StudySchedule::Conclude(const StudyRun& run, const absl::Status& status,
                             bool again, absl::Duration took) {
  if (status.ok()) {
    Mean& mean = took_[run.condition.batch_size];
    mean.sum += took;
    ++mean.count;
    hooks_.on_done(run, took);
    return;
  }
  // A run that was stopped early is neither complete nor failed.
  if (stopping_) return;
  const bool left_out = again || absl::IsInvalidArgument(status);
  hooks_.on_failed(run, status, !left_out);
  if (left_out) {
    failed_.push_back(run.Name());
  } else {
    again_.push_back(run);
  }
}

void StudySchedule::StartNext() {
  const bool again = waiting_.empty();
  std::deque<StudyRun>& queue = again ? again_ : waiting_;
  const StudyRun run = queue.front();
  queue.pop_front();
  absl::StatusOr<std::unique_ptr<StudyJob>> job = start_(run);
  if (!job.ok()) {
    Conclude(run, job.status(), again, absl::ZeroDuration());
    return;
  }
  jobs_.push_back({.run = run,
                   .begin = clock_.Now(),
                   .again = again,
                   .job = *std::move(job)});
}

void StudySchedule::Poll(absl::Duration timeout) {
  while (!stopping_ && running() < parallel_ &&
         !(waiting_.empty() && again_.empty())) {
    StartNext();
  }
  const absl::Duration each = timeout / std::max(running(), 1);
  for (size_t i = 0; i < jobs_.size();) {
    jobs_[i].job->Poll(each);
    if (!jobs_[i].job->done()) {
      ++i;
      continue;
    }
    const Job ended = std::move(jobs_[i]);
    jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(i));
    Conclude(ended.run, ended.job->result(), ended.again,
             clock_.Now() - ended.begin);
  }
}

void StudySchedule::RequestStop() {
  stopping_ = true;
  for (const Job& job : jobs_) job.job->RequestStop();
}

absl::Duration StudySchedule::Expected(const StudyRun& run) const {
  const auto same = took_.find(run.condition.batch_size);
  if (same != took_.end()) return same->second.sum / same->second.count;
  Mean all;
  for (const auto& [images, mean] : took_) {
    all.sum += mean.sum;
    all.count += mean.count;
  }
  return all.sum / all.count;
}

absl::Duration StudySchedule::TimeLeft() const {
  if (took_.empty()) return absl::InfiniteDuration();
  absl::Duration left;
  for (const auto* queue : {&waiting_, &again_}) {
    for (const StudyRun& run : *queue) left += Expected(run);
  }
  for (const Job& job : jobs_) {
    left += std::max(Expected(job.run) - (clock_.Now() - job.begin),
                     absl::ZeroDuration());
  }
  return left / parallel_;
}

}  // namespace cohort
