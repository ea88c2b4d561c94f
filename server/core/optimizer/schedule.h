#pragma once

#include <cstdint>

#include "server/core/options.h"

namespace cohort {

// Learning rate after `samples` of `samples_total`, a pure function of the
// samples seen, so that it is the same for any number of workers.
// constant: the base rate. cosine: base * (1 + cos(pi * t)) / 2 with
// t = samples / samples_total in [0, 1].
// Source: Loshchilov and Hutter, "SGDR", 2017, equation 5, one cycle to 0.
double LearningRate(const OptimizerOptions& options, int64_t samples,
                    int64_t samples_total);

}  // namespace cohort
