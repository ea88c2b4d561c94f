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

// The label of a pixel or image that counts nowhere: neither in the loss nor
// in any measure. Files use other numbers (often 255); reading maps them.
inline constexpr int64_t kIgnoredLabel = -1;

enum class DatasetTask {
  // One label an image.
  kClassification,
  // One label a pixel.
  kSegmentation,
};

// What decides, together with a sample's number, how it is augmented.
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
  // Absent: samples as they lie, which is how they are evaluated.
  std::optional<AugmentationKey> augmentation;
};

// The images of a split as they are held.
struct StoredImages {
  // [samples, channels, height, width].
  absl::Span<const uint8_t> pixels;
  int64_t samples = 0;
  // [channels, 256]: what Read makes of a pixel that no augmentation blends.
  absl::Span<const float> values;
};

// Where Read finds the pixels of a sample that is at most flipped and shifted:
// its pixel (y, x) is the stored (y + top, x + left), counted from the right
// edge with `flip`, and 0 where there is none.
struct SamplePlace {
  int64_t sample = 0;
  bool flip = false;
  int64_t top = 0;
  int64_t left = 0;
};

// A data set held in memory, addressed by sample number. Which samples are
// read, and in what order, is the server's business.
//
// Thread safety: const methods are safe.
class Dataset {
 public:
  virtual ~Dataset() = default;

  // Its name, and how training samples are augmented if they are: workers
  // compare it, such as "cifar10 (flip,crop)".
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

  // The class of each training sample, by sample number; where there is a label
  // a pixel, the commonest one of a sample, the lowest among equals, and
  // classes() if all its pixels are ignored.
  virtual std::vector<int64_t> TrainClasses() const = 0;

  // Reads images and labels of the same samples.
  //
  // `images`: float32 [n, channels, height, width], each pixel minus the mean
  //   and divided by the deviation of its channel over the train split.
  // `labels`: class numbers or kIgnoredLabel, [n] (classification) or
  //   [n, height, width] (segmentation).
  // What is written depends on the request alone, and what is written for a
  // sample on nothing but its number and the key: a request may be read in
  // parts, by several threads, in any order.
  // Indices must be within the split and the spans of these sizes.
  virtual void Read(const SampleRequest& request, absl::Span<float> images,
                    absl::Span<int64_t> labels) const = 0;

  // For who reads images by himself: those that are stored, and for each sample
  // of a request its place; its pixels' values are Read's, to the bit. Absent
  // if the data set is not held so, and if the request blends pixels.
  virtual std::optional<StoredImages> Stored(DataSplit /*split*/) const {
    return std::nullopt;
  }
  virtual std::optional<std::vector<SamplePlace>> PlacesOf(
      const SampleRequest& /*request*/) const {
    return std::nullopt;
  }
  // As Read, the labels alone. Only for requests that have places.
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
//   size than its image, a class number out of range, an empty split);
//   NotFound missing folder or file; DataLoss truncated or damaged file (says
//   what was seen and what is wanted); ResourceExhausted a data set larger
//   than this machine's memory.
absl::StatusOr<std::unique_ptr<Dataset>> MakeDataset(
    const DatasetOptions& options);

}  // namespace cohort
