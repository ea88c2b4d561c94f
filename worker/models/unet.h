#pragma once

#include <cstdint>
#include <memory>

#include "worker/models/model.h"

namespace cohort {

struct UnetOptions {
  int64_t channels = 3;
  int64_t classes = 2;
  // Channels of the first stage; each of the four further stages has twice as
  // many as the one before.
  int64_t width = 64;
};

// Five stages of two 3x3 convolutions, each with batch norm and ReLU; 2x2 max
// pooling between them on the way down, 2x2 transposed convolution and the
// stage's own map beside it on the way up; 1x1 convolution. Logits have the
// input's size, whatever it is: pooling rounds sizes up, and the excess at the
// lower and right edge is cut off on the way up.
// Names: encoder.0 to .4, up.0 to .3, decoder.0 to .3 (from below), classifier.
// Initial values are not set.
// Source: Ronneberger et al., "U-Net", 2015, figure 1; convolutions here are
//   padded and followed by batch norm.
std::shared_ptr<Model> MakeUnet(const UnetOptions& options);

}  // namespace cohort
