#include "tests/sim/core_host.h"

#include "common/check.h"

namespace cohort::sim {

CoordinatorOptions OptionsOf(const RunSpec& run, int32_t incarnation,
                             const RunState* restored) {
  CoordinatorOptions options = run.coordinator;
  options.first_incarnation = FirstIncarnation(incarnation);
  if (restored == nullptr) return options;
  const absl::Status read = SetSettings(restored->settings, options);
  COHORT_CHECK(read.ok(), read.message());
  return options;
}

}  // namespace cohort::sim
