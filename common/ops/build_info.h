#pragma once

#include "prometheus/metric_family.h"

namespace cohort {

// cohort_build_info, constant 1, labelled with version and commit.
prometheus::MetricFamily BuildInfoFamily();

}  // namespace cohort
