#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace cohort::bench {

struct ScrapeCost {
  int64_t page_bytes = 0;
  // Median time from the request to the last byte, on loopback.
  double seconds = 0;
  // CPU time of one scrape, on both sides of the connection.
  double cpu_seconds = 0;
  // CPU time of gathering the numbers, which happens four times a second with
  // or without scrapes.
  double gather_cpu_seconds = 0;
};

// Scrapes the metrics of a server with `workers` joined workers.
absl::StatusOr<ScrapeCost> TimeScrapes(int32_t workers, int32_t scrapes);

}  // namespace cohort::bench
