#pragma once

#include <cstdint>

#include "worker/datasets/options.h"

namespace cohort {

// How one training sample is changed. An output pixel (y, x) shows the pixel (y
// + top, x + left) of the flipped image brought to height x width; outside the
// image it is padding.
struct SampleChange {
  bool flip = false;
  int64_t height = 0;
  int64_t width = 0;
  int64_t top = 0;
  int64_t left = 0;
  // Colour factors; 1 changes nothing.
  double brightness = 1;
  double contrast = 1;
  double saturation = 1;
};

struct ChangeKey {
  uint64_t run_seed = 0;
  int64_t data_epoch = 0;
  // The sample's number in the train split.
  int64_t sample = 0;
};

// Draws how a sample of this size is changed: a pure function of its arguments.
// Augmentations that are switched off do not affect the draws of the others.
//
//   flip: left to right, every other time.
//   scale: by a factor from 0.5 to 2, uniform, the same for both sides.
//   crop: a random window of the size of the image; of a scaled image that is
//     smaller, a random place in the frame. Without scale the window may lie
//     up to an eighth of the image beyond each edge (4 pixels of 32).
//   Scale without crop shows the middle.
//   jitter: brightness, contrast and saturation by factors from 0.8 to 1.2.
// Source: flip and crop: He et al., "Deep Residual Learning", 2016, section
//   4.2; flip and scale: Zhao et al., "Pyramid Scene Parsing Network", 2017,
//   section 5.1 (its rotation and blur are left out).
SampleChange DrawChange(const Augmentations& augmentations,
                        const ImageSize& size, const ChangeKey& key);

// Planes of one image, row by row.
struct ImagePlanes {
  // [channels, height, width].
  const uint8_t* pixels = nullptr;
  int64_t channels = 0;
  ImageSize size;
};

// The part of the output that shows the image; the rest is padding.
struct OutputWindow {
  int64_t top = 0;
  int64_t bottom = 0;
  int64_t left = 0;
  int64_t right = 0;
};

OutputWindow WindowOf(const SampleChange& change, const ImageSize& size);

// Writes the changed image as numbers from 0 to 255, bilinear between pixels,
// [channels, height, width]; elements outside the window are not written. If
// nothing is scaled and no colour changes, pixels are exact.
//
// Colours: v' = b v; then c v' + (1 - c) m with m the mean grey of the window;
// then s v'' + (1 - s) g with g the pixel's grey (three channels only); cut to
// 0 to 255 at the end. Grey is 0.299 R + 0.587 G + 0.114 B (ITU-R BT.601), or
// the mean of the channels if there are not three.
void ChangeImage(const SampleChange& change, const ImagePlanes& image,
                 float* out);

// Writes the changed mask, nearest pixel, as numbers; `ignored` for padding
// and for the mask value `ignored_in_mask`.
struct MaskPlane {
  // [height, width].
  const uint8_t* labels = nullptr;
  ImageSize size;
  uint8_t ignored_in_mask = 255;
  int64_t ignored = -1;
};

void ChangeMask(const SampleChange& change, const MaskPlane& mask,
                int64_t* out);

}  // namespace cohort
