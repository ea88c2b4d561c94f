#pragma once

#include "common/float_buffer.h"
#include "kernels/backend.h"
#include "server/partitions/fold_job.h"

namespace cohort {

// RunFold for everything that the fused kernel cannot do: rules other than SGD,
// masks, delay compensation, and folds in several passes. The mean gradient of
// a block of elements is made in memory that stays in the cache, and updated
// from there.
FoldResult RunStagedFold(const FoldJob& job, const kernels::Backend& backend,
                         FloatBufferPool& pool);

}  // namespace cohort
