#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/assignment.h"

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

// A data set held in memory, addressed by sample number. Which samples are
// read, and in what order, is the server's business.
//
// Thread safety: const methods are safe.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual const std::string& name() const = 0;
  // XXH3-64 over the content of both splits, lower-case hexadecimal.
  virtual const std::string& digest() const = 0;
  virtual DatasetTask task() const { return DatasetTask::kClassification; }
  virtual int64_t classes() const = 0;
  virtual int64_t channels() const = 0;
  virtual int64_t height() const = 0;
  virtual int64_t width() const = 0;
  virtual int64_t train_size() const = 0;
  virtual int64_t test_size() const = 0;

  // Images as float32 [n, channels, height, width], each pixel minus the mean
  // and divided by the deviation of the train split.
  // Shapes: `out` has n * channels * height * width elements; indices must be
  //   within the split.
  virtual void ReadImages(DataSplit split, absl::Span<const int64_t> indices,
                          absl::Span<float> out) const = 0;
  // Class numbers or kIgnoredLabel, [n] (classification) or [n, height, width]
  // (segmentation).
  virtual void ReadLabels(DataSplit split, absl::Span<const int64_t> indices,
                          absl::Span<int64_t> out) const = 0;

  // Labels of one sample.
  int64_t labels_per_sample() const {
    return task() == DatasetTask::kSegmentation ? height() * width() : 1;
  }
};

struct DatasetOptions {
  // "fashion-mnist", "mnist" or "synthetic".
  std::string name;
  // Folder of the IDX files; empty: the data set's usual place.
  std::string data_dir;
  // Only the first samples of a split are used; absent: all.
  std::optional<int64_t> train_limit;
  std::optional<int64_t> test_limit;
};

// Errors: InvalidArgument unknown name (lists the known ones) or bad limit;
//   NotFound missing folder or file; DataLoss truncated or damaged file (says
//   bytes seen and wanted).
absl::StatusOr<std::unique_ptr<Dataset>> MakeDataset(
    const DatasetOptions& options);

}  // namespace cohort
