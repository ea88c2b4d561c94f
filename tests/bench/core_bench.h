#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace cohort::bench {

// Costs of the events of one kind in the server's core.
struct EventCosts {
  int64_t count = 0;
  // CPU time of the thread. Every event is handled under one lock, so the
  // longest event is the longest hold of the lock.
  double mean_ns = 0;
  double longest_ns = 0;
  double mean_allocations = 0;
};

// The order in which the ranks contribute.
enum class ArrivalOrder {
  kAscending,
  // The first rank contributes last, so that nothing can be folded before.
  kFirstLast,
};

struct CoreShape {
  int32_t workers = 0;
  int32_t steps = 0;
  int32_t partitions = 4;
  ArrivalOrder order = ArrivalOrder::kAscending;
};

// Costs by kind of event, of synchronous steps with global normalisation of the
// 53 batch-norm layers of ResNet-50: 106 rendezvous a step. There is no gRPC,
// no encoding and no thread; partitions have 16 elements, because larger ones
// cost the core no more. The first step is not counted.
absl::StatusOr<std::map<std::string, EventCosts>> MeasureCore(
    const CoreShape& shape);

}  // namespace cohort::bench
