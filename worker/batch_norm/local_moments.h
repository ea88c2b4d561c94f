#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/model_layout.h"
#include "common/moments.h"

namespace cohort {

// The moments of the calls of a push of local steps, one entry a layer, as
// CallMoments in parameters.proto has them: weighted as the moving statistics
// would weight the calls.
//
// Shapes: `calls` ascending by (layer, call); `counts` has one entry for each
//   part and layer, as PushClosing::batch_norm_calls. A part without any call
//   had no samples: it stands for as many calls as the part before.
// `members`: ranks whose batches make up one of PyTorch's unbiased variances.
// Order: float64, calls ascending.
std::vector<CallMoments> CombineLocalSteps(
    absl::Span<const CallMoments> calls, absl::Span<const int32_t> counts,
    absl::Span<const BatchNormSpec> layers, int64_t members);

}  // namespace cohort
