#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker/datasets/options.h"

namespace cohort {

// Planes [channels, height, width] of another size, bilinear. Where an image
// shrinks, the kernel (a triangle) widens with it, so that every pixel counts
// and nothing flickers; plain interpolation would skip pixels. Centres of
// pixels lie at halves, weights at the edges are those of the pixels there
// are. Rounded to the nearest number once at the end, halves up.
std::vector<uint8_t> ResizeImage(absl::Span<const uint8_t> pixels,
                                 int64_t channels, const ImageSize& from,
                                 const ImageSize& to);

// A mask [height, width] of another size: the label of the pixel that holds
// the new pixel's centre. Numbers of classes cannot be averaged.
std::vector<uint8_t> ResizeMask(absl::Span<const uint8_t> labels,
                                const ImageSize& from, const ImageSize& to);

}  // namespace cohort
