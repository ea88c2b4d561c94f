#pragma once

#include <cstdint>

#include "server/core/settings/options.h"

namespace cohort {

// How far a run is, in samples.
struct RunProgress {
  int64_t seen = 0;
  // Samples in one epoch and in the whole run; 0 if not known yet.
  int64_t epoch = 0;
  int64_t total = 0;
};

// The learning rate at some point of a run, a pure function of the samples
// seen, so that it is the same for any number of workers.
//
// Warm-up: rises linearly from 0 at sample 0 to the base rate after
//   warmup_epochs. Then, with t in [0, 1] the share done of what lies between
//   the warm-up and the end of the run:
// constant: base.
// step: base * gamma^(milestones in step_epochs reached); epochs count from
//   the start of the run, warm-up included.
// cosine: final + (base - final) * (1 + cos(pi * t)) / 2.
// polynomial: final + (base - final) * (1 - t)^power.
// Source: Goyal et al., "Accurate, Large Minibatch SGD", 2017, section 2.2
//   (warm-up); Loshchilov and Hutter, "SGDR", 2017, equation 5, one cycle.
double LearningRate(const OptimizerOptions& options,
                    const RunProgress& progress);

}  // namespace cohort
