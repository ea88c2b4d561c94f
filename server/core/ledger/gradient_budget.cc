#include "server/core/ledger/gradient_budget.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace cohort {

void GradientBudget::Release(int64_t bytes) {
  charged_bytes_ -= bytes;
  COHORT_CHECK(charged_bytes_ >= 0,
               absl::StrCat("released ", bytes, " bytes more than once"));
  Grant();
}

void GradientBudget::EndFold(int64_t bytes) {
  folding_bytes_ -= bytes;
  COHORT_CHECK(folding_bytes_ >= 0, "a fold ended twice");
  Release(bytes);
}

void GradientBudget::Reserve(Rank rank, int64_t bytes) {
  const bool asked = std::any_of(
      waiting_.begin(), waiting_.end(),
      [rank](const Request& request) { return request.rank == rank; });
  if (asked || HasReserved(rank)) return;
  waiting_.push_back({.rank = rank, .bytes = bytes});
  Grant();
}

void GradientBudget::Unreserve(Rank rank) {
  const auto granted = granted_.find(rank);
  if (granted != granted_.end()) {
    reserved_bytes_ -= granted->second;
    granted_.erase(granted);
  }
  std::erase_if(waiting_, [rank](const Request& request) {
    return request.rank == rank;
  });
  Grant();
}

void GradientBudget::Grant() {
  while (!waiting_.empty() && Fits(waiting_.front().bytes)) {
    const Request& request = waiting_.front();
    granted_[request.rank] = request.bytes;
    reserved_bytes_ += request.bytes;
    waiting_.pop_front();
  }
}

int64_t PushBytes(const ModelLayout& layout) {
  int64_t elements = 0;
  for (const ParameterSpec& parameter : layout.parameters) {
    if (parameter.trainable) elements += ElementCount(parameter);
  }
  return elements * static_cast<int64_t>(sizeof(float));
}

absl::Status CheckInflight(const CoordinatorOptions& options,
                           const ModelLayout& layout) {
  const PolicyOptions policy = Resolve(options.policy);
  int64_t pushes = 1;
  if (policy.aggregation == AggregationKind::kSync) {
    // Moments of the first batch norm make a member before any gradient comes.
    const bool by_moments =
        policy.normalization == NormalizationKind::kGlobal &&
        !layout.batch_norms.empty();
    const bool all =
        policy.pushes_min == 0 || policy.pushes_min >= options.workers;
    if (all || by_moments) return absl::OkStatus();
    pushes = policy.pushes_min;
  }
  const int64_t push_bytes = PushBytes(layout);
  // By division: the product may overflow.
  if (push_bytes <= options.inflight_bytes_max / pushes) {
    return absl::OkStatus();
  }
  constexpr int64_t kMib = 1 << 20;
  const auto mib = [](int64_t bytes) { return (bytes + kMib - 1) / kMib; };
  return absl::FailedPreconditionError(absl::StrCat(
      "--inflight_mib: got ", options.inflight_bytes_max, " bytes (",
      options.inflight_bytes_max / kMib, " MiB), want at least ", pushes, " x ",
      push_bytes, " (", pushes, " x ", mib(push_bytes), " MiB): under ",
      PolicyText(policy), " the server holds the complete gradients of ",
      pushes == 1 ? "a push" : absl::StrCat(pushes, " pushes"),
      " at a time; start the server with a larger --inflight_mib (capped at "
      "half of its memory limit), or use sync without --min_pushes"));
}

}  // namespace cohort
