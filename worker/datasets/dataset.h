#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/assignment.h"
#include "worker/datasets/options.h"

namespace cohort {

// The label of a pixel or image that is excluded from the loss and from all
// measures. Files use other numbers (often 255); the readers map them.
inline constexpr int64_t kIgnoredLabel = -1;

enum class DatasetTask {
  // One label an image.
  kClassification,
  // One label a pixel.
  kSegmentation,
};

// Seeds the augmentation of a sample, together with the sample's number.
struct AugmentationKey {
  uint64_t run_seed = 0;
  int64_t data_epoch = 0;

  friend bool operator==(const AugmentationKey&,
                         const AugmentationKey&) = default;
};

struct SampleRequest {
  DataSplit split = DataSplit::kTrain;
  // Sample numbers within the split.
  absl::Span<const int64_t> indices;
  // If absent, samples are not augmented, as in evaluation.
  std::optional<AugmentationKey> augmentation;
};

// The images of a split as they are stored.
struct StoredImages {
  // [samples, channels, height, width].
  absl::Span<const uint8_t> pixels;
  int64_t samples = 0;
  // [channels, 256]: the value that Read writes for each pixel value that no
  // augmentation blends.
  absl::Span<const float> values;
};

// Where Read finds the pixels of a sample that is at most flipped and shifted.
// Its pixel (y, x) is the stored pixel (y + top, x + left), counted from the
// right edge with `flip`, and 0 outside the image.
struct SamplePlace {
  int64_t sample = 0;
  bool flip = false;
  int64_t top = 0;
  int64_t left = 0;
};

// A data set held in memory, addressed by sample number. The server decides
// which samples are read, and in what order.
//
// Thread safety: const methods are safe.
class Dataset {
 public:
  virtual ~Dataset() = default;

  // The data set's name and its augmentations, if any, such as "cifar10
  // (flip,crop)". Workers are compared by it.
  virtual const std::string& name() const = 0;
  // XXH3-64 over the content of both splits, lower-case hexadecimal.
  virtual const std::string& digest() const = 0;
  virtual DatasetTask task() const = 0;
  virtual int64_t classes() const = 0;
  virtual int64_t channels() const = 0;
  virtual int64_t height() const = 0;
  virtual int64_t width() const = 0;
  virtual int64_t train_size() const = 0;
  virtual int64_t test_size() const = 0;

  // The class of each training sample, by sample number. For segmentation, the
  // sample's commonest label; the lowest among equals; classes() if all its
  // pixels are ignored.
  virtual std::vector<int64_t> TrainClasses() const = 0;

  // Reads images and labels of the same samples.
  //
  // `images`: float32 [n, channels, height, width], each pixel minus the mean
  //   and divided by the deviation of its channel over the train split.
  // `labels`: class numbers or kIgnoredLabel, [n] (classification) or
  //   [n, height, width] (segmentation).
  // The result depends on the request alone, and the result of a sample only on
  // its number and the key. So a request may be read in parts, by several
  // threads, in any order. Indices must be within the split, and the spans must
  // have these sizes.
  virtual void Read(const SampleRequest& request, absl::Span<float> images,
                    absl::Span<int64_t> labels) const = 0;

  // For callers that read pixels directly: the stored images, and the place of
  // each sample of a request. The resulting values equal Read's bit for bit.
  // Absent if the data set does not store images this way, or if the request
  // blends pixels.
  virtual std::optional<StoredImages> Stored(DataSplit /*split*/) const {
    return std::nullopt;
  }
  virtual std::optional<std::vector<SamplePlace>> PlacesOf(
      const SampleRequest& /*request*/) const {
    return std::nullopt;
  }
  // Like Read, but only the labels. Only for requests that have places.
  virtual void ReadLabels(const SampleRequest& /*request*/,
                          absl::Span<int64_t> /*labels*/) const {}

  // Elements of one sample's image.
  int64_t image_elements() const { return channels() * height() * width(); }
  // Labels of one sample.
  int64_t labels_per_sample() const {
    return task() == DatasetTask::kSegmentation ? height() * width() : 1;
  }
};

// Errors: InvalidArgument unknown name (lists the known ones), options that do
//   not fit, or content that breaks a rule of its layout (a mask of another
//   size than its image, a class number out of range, an empty split); NotFound
//   missing folder or file; DataLoss truncated or damaged file (with the value
//   seen and the value expected); ResourceExhausted a data set larger than this
//   machine's memory.
absl::StatusOr<std::unique_ptr<Dataset>> MakeDataset(
    const DatasetOptions& options);

}  // namespace cohort
