#pragma once

#include <cstdint>
#include <memory>

#include "worker/models/model.h"

namespace cohort {

struct GruRowsOptions {
  int64_t channels = 1;
  // Width of the images in pixels. With the channels it gives the size of an
  // element of the sequence.
  int64_t image_width = 28;
  int64_t classes = 10;
};

// The rows of an image, top to bottom, as a sequence: GRU with 128 units, batch
// norm on its last output, linear. Initial values are not set.
// Source: Cho et al., "Learning Phrase Representations using RNN
//   Encoder-Decoder", 2014, section 2.3, in PyTorch's form of the unit.
std::shared_ptr<Model> MakeGruRows(const GruRowsOptions& options);

}  // namespace cohort
