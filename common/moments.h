#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "common/ids.h"

namespace cohort {

enum class ReducePhase { kForward, kBackward };

// One batch-norm call of a step, in one direction.
struct CallPlace {
  // The part of the step: of a gradient that is accumulated over several
  // batches.
  int32_t part = 0;
  // Index into ModelLayout::batch_norms; -1: a call that is not registered,
  // which `site` names.
  int32_t layer = 0;
  // The name of a call that is not registered, or the name that the training
  // program gave to a call of a registered layer. Empty otherwise.
  std::string site;
  // Counts the calls of (part, layer, site), from 0.
  int32_t call = 0;
  ReducePhase phase = ReducePhase::kForward;
  // Backward only: which visit of the call. Empty: the first one of the step's
  // own backward pass. [v] with v = 4n + kind: visit n of that kind, where
  // kind 0 is the step's own backward pass, 1 a pass of the training program,
  // 2 and 3 the same, recorded to be differentiated. Longer: [v, i, v', ...] is
  // visit v' of the derivative of sum i of the pass before it.
  std::vector<int32_t> path;

  friend auto operator<=>(const CallPlace&, const CallPlace&) = default;
};

// Identifies a rendezvous. Never inferred from the order of arrival.
struct ReduceKey {
  Version step;
  Attempt attempt;
  CallPlace place;

  friend auto operator<=>(const ReduceKey&, const ReduceKey&) = default;
};

// Moments of one rank, or of all, at one batch-norm call. Forward: `first` is
// the mean and `second` M2 = sum (x-mean)^2. Backward: `first` is sum dy and
// `second` sum dy*(x-mean), or other sums where the path is longer than one
// visit. float64 [channels] each.
struct Moments {
  // Elements per channel.
  int64_t count = 0;
  std::vector<double> first;
  std::vector<double> second;
};

// A rank's part of one rendezvous.
struct Contribution {
  CallPlace place;
  Moments moments;
  // Forward only: the extents of the input after batch and channels. May be
  // empty.
  std::vector<int64_t> extents;
};

// Moments of one forward call that has no rendezvous, as a closing or a report
// carries them.
struct CallMoments {
  int32_t layer = 0;
  // Counts the calls of this layer through all parts of the step.
  int32_t call = 0;
  Moments moments;
  // With local steps, for all calls of the layer in a push; otherwise 0.
  // CallMoments in parameters.proto has the formulas.
  double weight = 0;
  int32_t updates = 0;
};

}  // namespace cohort
