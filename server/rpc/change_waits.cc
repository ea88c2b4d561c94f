#include "server/rpc/change_waits.h"

#include <algorithm>

#include "server/core/describe_status.h"

namespace cohort {

void ChangeWaits::Add(Wait wait) {
  MutexLock lock(mu_);
  if (waits_.size() >= kCallsMax) wait.due = Instant();
  waits_.push_back(std::move(wait));
}

bool ChangeWaits::IsDue(Instant now) const {
  MutexLock lock(mu_);
  return std::any_of(waits_.begin(), waits_.end(), [now](const Wait& wait) {
    return wait.due <= now || wait.is_cancelled();
  });
}

void ChangeWaits::Check(const PolicyView& policy, Instant now) {
  std::vector<std::pair<Wait, absl::StatusOr<std::optional<PolicyRecord>>>>
      answers;
  {
    MutexLock lock(mu_);
    std::erase_if(waits_, [&](Wait& wait) {
      auto outcome = OutcomeOf(policy, wait.change);
      const bool pending = outcome.ok() && !outcome->has_value();
      if (wait.is_cancelled()) {
        outcome = absl::CancelledError("cancelled");
      } else if (pending && now < wait.due) {
        return false;
      }
      answers.emplace_back(std::move(wait), std::move(outcome));
      return true;
    });
  }
  for (auto& [wait, outcome] : answers) wait.done(policy, std::move(outcome));
}

}  // namespace cohort
