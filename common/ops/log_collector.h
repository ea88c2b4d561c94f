#pragma once

#include "common/ops/metrics_page.h"

namespace cohort {

// cohort_log_messages_total, from the log's own counters.
MetricFamilies LogFamilies();

}  // namespace cohort
