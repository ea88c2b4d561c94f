#pragma once

#include "absl/status/statusor.h"
#include "worker/datasets/image_table.h"
#include "worker/datasets/options.h"

namespace cohort {

// Reads a segmentation data set in the layout of PASCAL VOC:
//   ImageSets/Segmentation/train.txt, val.txt   one name a line
//   JPEGImages/NAME.jpg (or .jpeg, .png)        the image
//   SegmentationClass/NAME.png                  its mask, palette or grey
// The mask's numbers are the classes; options.ignore_index marks ignored
// pixels. val is the test split.
//
// Errors: those of LoadFiles; NotFound a folder, a split file, or an image or
//   mask that a split file names; InvalidArgument an empty split file, or an
//   option out of range.
absl::StatusOr<ImageTable> ReadVoc(const DatasetOptions& options);

}  // namespace cohort
