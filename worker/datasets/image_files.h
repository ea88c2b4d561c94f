#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/datasets/image_table.h"
#include "worker/datasets/options.h"

namespace cohort {

// One sample of a data set that is stored in files.
struct ImageFile {
  std::string image;
  // For segmentation; empty otherwise.
  std::string mask;
  // For classification.
  uint16_t label = 0;
};

// Decodes files into a split of the table, in their order. The result does not
// depend on the number of threads. If neither the table nor the options have an
// image size, the first image decides it.
//
// Under BadSamples::kSkip, samples that cannot be decoded are left out. A
// limited number of them get a warning each; a last warning gives the total.
//
// Errors, each with the file: NotFound missing; DataLoss cannot be decoded;
//   InvalidArgument an image of a kind or size that does not fit, a mask of
//   another size than its image, a class number out of range, or no sample
//   left; ResourceExhausted more than this machine's memory.
absl::Status LoadFiles(const std::vector<ImageFile>& files,
                       const DatasetOptions& options, ImageTable& table,
                       ImageSplit& split);

}  // namespace cohort
