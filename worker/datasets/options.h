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

// "240x180" and the like, height first.
std::string ToText(const ImageSize& size);

// Which random changes training samples get. What each does: augmentation.h.
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

// What happens to a sample whose file cannot be decoded.
enum class BadSamples {
  // Making the data set fails with an error that names the file.
  kStop,
  // The sample is left out, with a warning. The digest tells workers that
  // left out different samples apart.
  kSkip,
};

struct DatasetOptions {
  // One of: fashion-mnist, mnist, cifar10, cifar100, voc, imagefolder,
  // synthetic, synthetic-segmentation.
  std::string name;
  // Folder of the files; empty: the data set's usual place.
  std::string data_dir;
  // Images (bilinear) and masks (nearest) are resized to this when they are
  // loaded. Absent: as they are; all must then be of one size.
  std::optional<ImageSize> image_size;
  // voc: classes of the masks; absent: one more than the largest label found.
  std::optional<int64_t> classes;
  // voc: the mask value of pixels that do not count; -1: there is none.
  int64_t ignore_index = 255;
  // Absent: what is usual for the data set (DefaultAugmentations).
  std::optional<Augmentations> augment;
  BadSamples bad_samples = BadSamples::kStop;
  // Threads that decode while the data set is loaded, 1 or more; the result
  // is the same for any number.
  int32_t loader_threads = 1;
  // Only the first samples of a split are used; absent: all.
  std::optional<int64_t> train_limit;
  std::optional<int64_t> test_limit;
};

// cifar10 and cifar100: flip, crop. voc: flip, crop, scale, jitter. Others:
// none.
Augmentations DefaultAugmentations(absl::string_view dataset);

// Read what the flags of these names say.
//
// Errors: InvalidArgument, with the flag, the text seen and what is wanted.
//   ParseImageSize: "" (absent) or HxW, each 1 to 16384.
//   ParseAugmentations: "auto" (absent), "none" or a list of flip, crop,
//     scale and jitter.
//   ParseBadSamples: "stop" or "skip".
absl::StatusOr<std::optional<ImageSize>> ParseImageSize(absl::string_view text);
absl::StatusOr<std::optional<Augmentations>> ParseAugmentations(
    absl::string_view text);
absl::StatusOr<BadSamples> ParseBadSamples(absl::string_view text);

}  // namespace cohort
