#pragma once

#include <cstdint>

#include "server/metrics/families_page.h"
#include "server/metrics/run_figures.h"

namespace cohort {

// Families that a data shard has too, under the same names.

void AddTransfers(const ServiceFigures& service, FamiliesPage& page);
void AddFolds(const BucketCounts& fold_seconds, const ServiceFigures& service,
              FamiliesPage& page);
void AddMemoryLimit(int64_t bytes, FamiliesPage& page);

}  // namespace cohort
