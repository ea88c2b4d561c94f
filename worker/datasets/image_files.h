#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/datasets/image_table.h"
#include "worker/datasets/options.h"

namespace cohort {

// One sample of a data set that lies in files.
struct ImageFile {
  std::string image;
  // Of segmentation; empty otherwise.
  std::string mask;
  // Of classification.
  uint16_t label = 0;
};

// The first `limit` of them, if there is a limit.
void Shorten(const std::optional<int64_t>& limit,
             std::vector<ImageFile>& files);

// Decodes files into a split of the table, in their order. What is loaded does
// not depend on the number of threads. The first image loaded into a table
// without a size decides it, unless the options do.
//
// Samples that cannot be decoded are left out under BadSamples::kSkip, each
// with a warning, up to a limit, and their number with a last one.
//
// Errors, each with the file: NotFound missing; DataLoss cannot be decoded;
//   InvalidArgument an image of a kind or size that does not fit, a mask of
//   another size than its image, a class number out of range, or no sample
//   left; ResourceExhausted more than this machine's memory.
absl::Status LoadFiles(const std::vector<ImageFile>& files,
                       const DatasetOptions& options, ImageTable& table,
                       ImageSplit& split);

}  // namespace cohort
