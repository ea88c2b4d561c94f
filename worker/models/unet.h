#pragma once

#include <cstdint>
#include <memory>

#include "worker/models/model.h"

namespace cohort {

struct UnetOptions {
  int64_t channels = 3;
  int64_t classes = 2;
  // Channels of the first stage; each of the four further ones has twice as
  // many as the one before.
  int64_t width = 64;
};

// Five stages of two 3x3 convolutions, each with batch norm and ReLU; 2x2 max
// pooling between them on the way down, 2x2 transposed convolution and the
// stage's own map beside it on the way up; 1x1 convolution. Logits are at the
// input's size, whatever it is: pooling rounds sizes up, and what the way up
// has too much at the lower and right edge is cut off.
// Names: encoder.0 to .4, up.0 to .3, decoder.0 to .3 (from below), classifier.
// Without initial values.
// Source: Ronneberger et al., "U-Net", 2015, figure 1; convolutions here are
//   padded and followed by batch norm.
std::shared_ptr<Model> MakeUnet(const UnetOptions& options);

}  // namespace cohort
