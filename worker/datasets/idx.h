#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker/datasets/image_table.h"

namespace cohort {

// Reads the four IDX files of MNIST's layout, gzip or not:
//   train-images-idx3-ubyte, train-labels-idx1-ubyte,
//   t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte, each with or without .gz.
// A file is a big-endian magic number (0x803 images, 0x801 labels), one
// 32-bit extent a dimension, and the bytes.
//
// Errors: NotFound folder or file; DataLoss truncated, trailing bytes, bad
//   magic, damaged gzip, image and label counts that differ, a label out of
//   0..9.
absl::StatusOr<ImageTable> ReadIdx(const std::string& name,
                                   const std::string& data_dir);

}  // namespace cohort
