#pragma once

#include "common/ops/metrics_page.h"

namespace cohort {

// cohort_build_info, constant 1, labelled with version and commit.
MetricFamilies BuildInfoFamilies();

}  // namespace cohort
