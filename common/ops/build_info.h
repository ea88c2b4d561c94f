#pragma once

#include "absl/strings/string_view.h"
#include "prometheus/metric_family.h"

namespace cohort {

// Of the release, such as "0.1.0".
absl::string_view BuildVersion();
// What it was configured from; "unknown" outside a git checkout.
absl::string_view BuildCommit();

// cohort_build_info, constant 1.
prometheus::MetricFamily BuildInfoFamily();

}  // namespace cohort
