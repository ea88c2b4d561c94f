#pragma once

#include <array>
#include <cstddef>

#include "absl/strings/string_view.h"

namespace cohort {

// The activity of a worker during a step. A step is in exactly one phase at a
// time.
enum class StepPhase {
  // Reading, decoding and augmenting samples.
  kData,
  kForward,
  // Batch norm of the forward or backward pass waits for the other members.
  kRendezvous,
  kBackward,
  // Passing gradients to the network, and new weights to the model.
  kPush,
  // Waiting for other workers, the server or its weights.
  kWait,
};

inline constexpr size_t kStepPhases = 6;

// Names by phase, for metrics, timelines and heartbeats.
inline constexpr std::array<absl::string_view, kStepPhases> kStepPhaseNames = {
    "data", "forward", "rendezvous", "backward", "push", "wait"};

constexpr absl::string_view StepPhaseName(StepPhase phase) {
  return kStepPhaseNames[static_cast<size_t>(phase)];
}

}  // namespace cohort
