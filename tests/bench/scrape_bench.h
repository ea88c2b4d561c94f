#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace cohort::bench {

struct ScrapeCost {
  int64_t page_bytes = 0;
  // Median, from the request to the last byte, on loopback.
  double seconds = 0;
  // Of one scrape, both sides of the connection.
  double cpu_seconds = 0;
  // Of gathering the figures, which happens four times a second whether
  // anybody asks or not.
  double gather_cpu_seconds = 0;
};

// Scrapes the metrics of a server whose `workers` have joined.
absl::StatusOr<ScrapeCost> TimeScrapes(int32_t workers, int32_t scrapes);

}  // namespace cohort::bench
