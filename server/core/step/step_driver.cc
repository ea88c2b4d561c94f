#include "server/core/step/step_driver.h"

#include "server/core/step/arrival_queue.h"
#include "server/core/step/sync_rounds.h"

namespace cohort {

std::unique_ptr<StepDriver> MakeStepDriver(RunParts& parts) {
  if (parts.settings.sync()) return std::make_unique<SyncRounds>(parts);
  return std::make_unique<ArrivalQueue>(parts);
}

std::vector<Rank> StepDriver::Candidates() const {
  const bool waits = parts_.settings.waits_for_lost();
  std::vector<Rank> candidates;
  for (const Worker& worker : parts_.ranks.all()) {
    // Under `wait` a vacant rank stays a member: its replacement will compute
    // its share. Otherwise a broken stream is no loss yet: if it becomes one,
    // the attempt ends.
    // A rank that was lost while the cohort was elastic has no share, until
    // another worker takes its place.
    const bool takes_part =
        waits ? worker.ever_registered && worker.batch_size > 0
              : worker.state != Worker::State::kVacant && worker.registered &&
                    !worker.leaves_because.has_value();
    if (takes_part) candidates.push_back(worker.rank);
  }
  return candidates;
}

std::vector<int64_t> StepDriver::BatchSizesOf(
    const std::vector<Rank>& ranks) const {
  std::vector<int64_t> sizes;
  for (Rank rank : ranks) sizes.push_back(parts_.ranks[rank].batch_size);
  return sizes;
}

}  // namespace cohort
