#include "server/metrics/server_families.h"

namespace cohort {

void AddTransfers(const ServiceFigures& service, FamiliesPage& page) {
  const MetricLabels float32 = {{"encoding", "float32"}};
  const MetricLabels bfloat16 = {{"encoding", "bfloat16"}};
  page.Counter("cohort_push_bytes_total", "Bytes of gradients received.")
      .Value(service.push_bytes_float32, float32)
      .Value(service.push_bytes_bfloat16, bfloat16);
  page.Counter("cohort_pull_bytes_total", "Bytes of weights sent.")
      .Value(service.pull_bytes_float32, float32)
      .Value(service.pull_bytes_bfloat16, bfloat16);
}

void AddFolds(const BucketCounts& fold_seconds, const ServiceFigures& service,
              FamiliesPage& page) {
  page.Histogram("cohort_apply_duration_seconds",
                 "Time to fold and update one partition.")
      .Value(fold_seconds);
  page.Gauge("cohort_queue_depth", "Tasks that are queued or running.")
      .Value(service.folds_waiting, {{"queue", "fold"}});
  page.Gauge("cohort_inflight_bytes", "Gradients held until they are folded.")
      .Value(service.inflight_bytes);
}

void AddMemoryLimit(int64_t bytes, FamiliesPage& page) {
  page.Gauge("cohort_memory_limit_bytes", "Memory that this process may use.")
      .Value(bytes);
}

}  // namespace cohort
