#include "common/ops/build_info.h"

#include <string>

#include "common/ops/metrics_page.h"

namespace cohort {

absl::string_view BuildVersion() { return COHORT_BUILD_VERSION; }

absl::string_view BuildCommit() { return COHORT_BUILD_COMMIT; }

prometheus::MetricFamily BuildInfoFamily() {
  prometheus::MetricFamily family =
      GaugeFamily("cohort_build_info", "Constant 1; what was built.");
  AddValue(family, 1,
           {{"version", std::string(BuildVersion())},
            {"commit", std::string(BuildCommit())}});
  return family;
}

}  // namespace cohort
