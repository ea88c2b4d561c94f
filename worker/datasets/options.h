#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cohort {

struct ImageSize {
  int64_t height = 0;
  int64_t width = 0;

  friend bool operator==(const ImageSize&, const ImageSize&) = default;
};

// Such as "240x180", height first.
std::string ToText(const ImageSize& size);

// The random changes to training samples; augmentation.h describes each.
struct Augmentations {
  bool flip = false;
  bool crop = false;
  bool scale = false;
  bool jitter = false;

  bool any() const { return flip || crop || scale || jitter; }
  friend bool operator==(const Augmentations&, const Augmentations&) = default;
};

// "none", or the names in the order above, separated by commas.
std::string ToText(const Augmentations& augmentations);

// How to treat a sample whose file cannot be decoded.
enum class BadSamples {
  // Creating the data set fails with an error that names the file.
  kStop,
  // The sample is left out, with a warning. The digest distinguishes workers
  // that left out different samples.
  kSkip,
};

struct DatasetOptions {
  // One of: fashion-mnist, mnist, cifar10, cifar100, voc, imagefolder,
  // synthetic, synthetic-segmentation.
  std::string name;
  // Folder of the files; if empty, the data set's usual place.
  std::string data_dir;
  // Images (bilinear) and masks (nearest) are resized to this when they are
  // loaded. If absent, they are not resized, and all must have one size.
  std::optional<ImageSize> image_size;
  // voc: number of classes in the masks; if absent, one more than the largest
  // label found.
  std::optional<int64_t> classes;
  // voc: the mask value of ignored pixels; -1: there is none.
  int64_t ignore_index = 255;
  // If absent, the data set's default (DefaultAugmentations).
  std::optional<Augmentations> augment;
  BadSamples bad_samples = BadSamples::kStop;
  // Threads that decode while the data set is loaded, 1 or more; the result is
  // the same for any number.
  int32_t loader_threads = 1;
  // Samples of a split of the synthetic sets, for tests; if absent, each has
  // its own number.
  std::optional<int64_t> synthetic_train;
  std::optional<int64_t> synthetic_test;
};

// cifar10 and cifar100: flip, crop. voc: flip, crop, scale, jitter. Others:
// none.
Augmentations DefaultAugmentations(absl::string_view dataset);

// Parse the values of the flags of the same names.
//
// Errors: InvalidArgument, with the flag, the text seen and the accepted
//   values. ParseImageSize: "" (absent) or HxW, each 1 to 16384.
//   ParseAugmentations: "auto" (absent), "none" or a list of flip, crop,
//     scale and jitter.
absl::StatusOr<std::optional<ImageSize>> ParseImageSize(absl::string_view text);
absl::StatusOr<std::optional<Augmentations>> ParseAugmentations(
    absl::string_view text);

// `name` is stop or skip.
inline BadSamples BadSamplesNamed(absl::string_view name) {
  return name == "skip" ? BadSamples::kSkip : BadSamples::kStop;
}

}  // namespace cohort
