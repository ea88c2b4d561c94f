#pragma once

#include "server/core/views.h"

namespace cohort {

// In the second epoch of four, at step 30.
inline StatusView Training() {
  return {.state = "training, 2 of 2 workers",
          .phase = StatusView::Phase::kTraining,
          .version = Version(30),
          .data_epoch = 1,
          .epochs = 4,
          .samples = 150,
          .samples_total = 400,
          .train_loss = 0.5,
          .workers_live = 2,
          .workers_expected = 2};
}

}  // namespace cohort
