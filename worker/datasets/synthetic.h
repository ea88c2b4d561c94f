#pragma once

#include <cstdint>

#include "worker/datasets/image_table.h"

namespace cohort {

struct SyntheticSize {
  int64_t train = 0;
  int64_t test = 0;
};

// Ten classes of 28x28 grey images: a bright bar at a random place in noise;
// its angle is the class. Learnable, but not at once. The same on every
// machine.
ImageTable SyntheticBars(const SyntheticSize& size);

// 48x48 colour images of two to four shapes on noise, and their masks. Classes:
// 0 ground, 1 discs, 2 squares, 3 crosses. Only the form tells the class, not
// the colour. A rim of one pixel around each shape is ignored, as in annotated
// data.
ImageTable SyntheticShapes(const SyntheticSize& size);

}  // namespace cohort
