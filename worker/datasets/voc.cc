#include "worker/datasets/voc.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/datasets/files.h"
#include "worker/datasets/image_files.h"

namespace cohort {
namespace {

absl::StatusOr<ImageFile> FindSample(const std::string& dir,
                                     const std::string& list,
                                     const std::string& name) {
  ImageFile file{.mask =
                     absl::StrCat(dir, "/SegmentationClass/", name, ".png")};
  const std::string stem = absl::StrCat(dir, "/JPEGImages/", name);
  for (const char* ending : {".jpg", ".jpeg", ".png"}) {
    file.image = absl::StrCat(stem, ending);
    if (IsFile(file.image)) break;
    file.image.clear();
  }
  if (file.image.empty()) {
    return absl::NotFoundError(absl::StrCat(list, ": got the name '", name,
                                            "', but there is no image ", stem,
                                            ".jpg, .jpeg or .png"));
  }
  if (!IsFile(file.mask)) {
    return absl::NotFoundError(absl::StrCat(
        list, ": got the name '", name, "', but there is no mask ", file.mask));
  }
  return file;
}

absl::StatusOr<std::vector<ImageFile>> ListSplit(const std::string& dir,
                                                 const std::string& split) {
  const std::string list =
      absl::StrCat(dir, "/ImageSets/Segmentation/", split, ".txt");
  COHORT_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                          ReadLines(list));
  if (names.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(list, ": got an empty file, want the names of the ", split,
                     " samples, one per line"));
  }
  std::vector<ImageFile> files;
  for (const std::string& name : names) {
    COHORT_ASSIGN_OR_RETURN(ImageFile file, FindSample(dir, list, name));
    files.push_back(std::move(file));
  }
  return files;
}

// One more than the largest class in the masks.
int64_t ClassesIn(const ImageTable& table) {
  int64_t classes = 0;
  for (const ImageSplit* split : {&table.train, &table.test}) {
    for (const uint8_t label : split->masks) {
      if (label != kIgnoredInMask) {
        classes = std::max<int64_t>(classes, label + 1);
      }
    }
  }
  return classes;
}

absl::Status CheckOptions(const DatasetOptions& options) {
  const int64_t classes = options.classes.value_or(1);
  if (classes < 1 || classes > kMaskClassesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--classes: got ", classes, ", want 1 to ", kMaskClassesMax));
  }
  if (options.ignore_index < -1 || options.ignore_index > 255) {
    return absl::InvalidArgumentError(
        absl::StrCat("--ignore_index: got ", options.ignore_index,
                     ", want 0 to 255, or -1 for none"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ImageTable> ReadVoc(const DatasetOptions& options) {
  COHORT_RETURN_IF_ERROR(CheckOptions(options));
  const std::string& dir = options.data_dir;
  COHORT_RETURN_IF_ERROR(
      CheckDataDir("voc", dir, "JPEGImages, SegmentationClass and ImageSets"));
  COHORT_ASSIGN_OR_RETURN(const std::vector<ImageFile> train,
                          ListSplit(dir, "train"));
  COHORT_ASSIGN_OR_RETURN(const std::vector<ImageFile> val,
                          ListSplit(dir, "val"));
  ImageTable table{.name = "voc", .task = DatasetTask::kSegmentation};
  COHORT_RETURN_IF_ERROR(LoadFiles(train, options, table, table.train));
  COHORT_RETURN_IF_ERROR(LoadFiles(val, options, table, table.test));
  table.classes = options.classes.value_or(ClassesIn(table));
  if (table.classes == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        dir, "/SegmentationClass: got only masks of ", options.ignore_index,
        " (ignored), want at least one class"));
  }
  return table;
}

}  // namespace cohort
