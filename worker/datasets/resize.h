#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker/datasets/options.h"

namespace cohort {

// Resizes planes [channels, height, width], bilinear. When an image shrinks,
// the kernel (a triangle) widens with it, so that every pixel contributes and
// nothing flickers; plain interpolation would skip pixels. Centres of pixels
// lie at halves. At the edges only existing pixels have weight. Results are
// rounded once at the end to the nearest number, halves up.
std::vector<uint8_t> ResizeImage(absl::Span<const uint8_t> pixels,
                                 int64_t channels, const ImageSize& from,
                                 const ImageSize& to);

// Resizes a mask [height, width]: each new pixel takes the label of the pixel
// that contains its centre. Class numbers cannot be averaged.
std::vector<uint8_t> ResizeMask(absl::Span<const uint8_t> labels,
                                const ImageSize& from, const ImageSize& to);

}  // namespace cohort
