#pragma once

#include <cstdint>
#include <optional>

#include "common/ids.h"

namespace cohort {

// How the model did at the end of an epoch, by the first of the policy's kinds
// of moving statistics.
struct Score {
  Version version;
  // Completed at that version.
  int64_t epochs = 0;
  // Mean over the loss weight.
  double loss = 0;
  // Share of labels that were predicted; absent if there were none.
  std::optional<double> accuracy;
  // Where there is a label a pixel: mean over classes of intersection over
  // union.
  std::optional<double> mean_iou;

  friend bool operator==(const Score&, const Score&) = default;
};

}  // namespace cohort
