#pragma once

#include <array>
#include <cstddef>

#include "absl/strings/string_view.h"

namespace cohort {

// What a worker does during one step. A step is in exactly one phase at a time.
enum class StepPhase {
  // Reading, decoding and augmenting samples.
  kData,
  kForward,
  // Batch norm of the forward or backward pass waits for the other members.
  kRendezvous,
  kBackward,
  // Handing gradients to the network, and new weights to the model.
  kPush,
  // For other workers, the server or its weights.
  kWait,
};

inline constexpr size_t kStepPhases = 6;

// By phase; in metrics, timelines and heartbeats.
inline constexpr std::array<absl::string_view, kStepPhases> kStepPhaseNames = {
    "data", "forward", "rendezvous", "backward", "push", "wait"};

constexpr absl::string_view StepPhaseName(StepPhase phase) {
  return kStepPhaseNames[static_cast<size_t>(phase)];
}

}  // namespace cohort
