#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/datasets/options.h"

namespace cohort {

// A decoded image: planes [channels, height, width], three of colour or one of
// class numbers.
struct Raster {
  int64_t channels = 0;
  ImageSize size;
  std::vector<uint8_t> pixels;
};

// Pixels of one image at most: far above any photograph, and far below a
// harmful size. A header of a few bytes may claim any size.
inline constexpr int64_t kImagePixelsMax = int64_t{1} << 27;

// The errors below name no file: they describe the bytes, and the caller, which
// knows the file, adds its name.
//
// Errors: DataLoss truncated, damaged, or not in this format; InvalidArgument a
//   kind that cannot be used (says which, and which kinds can).
// Thread safety: safe.

// JPEG, baseline or progressive, as three channels; grey becomes colour with
// equal channels. A libjpeg warning (an early end, a bad code) counts as damage
// here: libjpeg would continue with grey areas in place of the image. Bytes
// between segments are harmless and accepted.
absl::StatusOr<Raster> DecodeJpeg(absl::Span<const uint8_t> bytes);

// PNG of any kind as three channels of 8 bits; grey and palette become colour,
// 16 bits are reduced to 8, transparency is dropped.
absl::StatusOr<Raster> DecodePng(absl::Span<const uint8_t> bytes);

// JPEG or PNG, recognised by the first bytes and not by the file's name.
absl::StatusOr<Raster> DecodeImage(absl::Span<const uint8_t> bytes);

// A PNG mask as one channel of class numbers: palette positions, or grey
// values of 1 to 8 bits as they are.
absl::StatusOr<Raster> DecodeMask(absl::Span<const uint8_t> bytes);

}  // namespace cohort
