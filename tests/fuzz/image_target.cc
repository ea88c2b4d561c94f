#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "tests/fuzz/target.h"
#include "tests/worker/datasets/written_images.h"
#include "worker/datasets/options.h"
#include "worker/datasets/raster.h"

namespace cohort::fuzz {
namespace {

using Decoder = absl::StatusOr<Raster> (*)(absl::Span<const uint8_t>);

void CheckDecoder(Decoder decode, int64_t channels, absl::string_view input) {
  const absl::StatusOr<Raster> image = decode(absl::MakeConstSpan(
      reinterpret_cast<const uint8_t*>(input.data()), input.size()));
  RequireCode(image.status(), {absl::StatusCode::kDataLoss,
                               absl::StatusCode::kInvalidArgument});
  if (!image.ok()) return;
  const ImageSize& size = image->size;
  COHORT_CHECK(image->channels == channels, "other channels");
  COHORT_CHECK(size.height > 0 && size.width > 0, "no pixels");
  COHORT_CHECK(size.height * size.width <= kImagePixelsMax, "too many pixels");
  COHORT_CHECK(static_cast<int64_t>(image->pixels.size()) ==
                   channels * size.height * size.width,
               "the pixels do not fill the image");
}

void RunImage(absl::string_view input) {
  CheckDecoder(DecodeImage, 3, input);
  CheckDecoder(DecodeMask, 1, input);
  const absl::string_view text = input.substr(0, 24);
  const auto size = ParseImageSize(text);
  RequireCode(size.status(), {absl::StatusCode::kInvalidArgument});
  if (size.ok() && size->has_value()) {
    COHORT_CHECK(*ParseImageSize(ToText(**size)) == *size, "another size");
  }
  const auto augment = ParseAugmentations(text);
  RequireCode(augment.status(), {absl::StatusCode::kInvalidArgument});
  if (augment.ok() && augment->has_value()) {
    COHORT_CHECK(*ParseAugmentations(ToText(**augment)) == *augment,
                 "other augmentations");
  }
}

std::vector<std::string> ImageSeeds() {
  const Picture colour = Plain(3, 5, {200, 30, 7});
  return {JpegBytes(colour),
          JpegBytes(colour, JpegKind::kProgressive),
          JpegBytes(Plain(2, 2, {9, 9, 9, 9}), JpegKind::kCmyk),
          PngBytes(colour, PngKind::kRgb),
          PngBytes(colour, PngKind::kRgb, 16),
          PngBytes(Plain(2, 3, {1, 2, 3, 4}), PngKind::kRgba),
          MaskBytes(2, 2, {0, 1, 2, 255}),
          MaskBytes(2, 2, {0, 1, 2, 255}, PngKind::kGrey),
          "240x180",
          "flip,crop"};
}

}  // namespace

Target ImageTarget() {
  return {.name = "image",
          .run = RunImage,
          .seeds = ImageSeeds,
          .input_bytes_max = 2048};
}

}  // namespace cohort::fuzz
