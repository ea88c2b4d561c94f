#pragma once

#include "absl/status/statusor.h"
#include "worker/datasets/image_table.h"
#include "worker/datasets/options.h"

namespace cohort {

// Reads a classification data set of one folder a class:
//   train/CLASS/*.jpg, *.jpeg, *.png
//   val/CLASS/...   or, where there is no val, test/CLASS/...
// Classes are the sorted names of train's folders; within one, samples are
// sorted by name. Other files are ignored.
//
// Errors: those of LoadFiles; NotFound a folder; InvalidArgument no class,
//   a class of train without an image, a class that train does not have.
absl::StatusOr<ImageTable> ReadImageFolder(const DatasetOptions& options);

}  // namespace cohort
