#include "worker/datasets/image_folder.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/datasets/files.h"
#include "worker/datasets/image_files.h"

namespace cohort {
namespace {

bool IsImageName(const std::string& name) {
  const std::string lower = absl::AsciiStrToLower(name);
  return absl::EndsWith(lower, ".jpg") || absl::EndsWith(lower, ".jpeg") ||
         absl::EndsWith(lower, ".png");
}

absl::StatusOr<std::vector<std::string>> FoldersIn(const std::string& path) {
  COHORT_ASSIGN_OR_RETURN(std::vector<std::string> names, ListFolder(path));
  std::erase_if(names, [&](const std::string& name) {
    return !IsFolder(absl::StrCat(path, "/", name));
  });
  if (names.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": got no folder, want one per class"));
  }
  return names;
}

absl::StatusOr<std::vector<ImageFile>> ImagesIn(const std::string& path,
                                                uint16_t label) {
  COHORT_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                          ListFolder(path));
  std::vector<ImageFile> files;
  for (const std::string& name : names) {
    if (!IsImageName(name)) continue;
    files.push_back({.image = absl::StrCat(path, "/", name), .label = label});
  }
  return files;
}

// All images below `path`, in the order of classes and then of names.
absl::StatusOr<std::vector<ImageFile>> ListSplit(
    const std::string& path, const std::vector<std::string>& classes) {
  COHORT_ASSIGN_OR_RETURN(const std::vector<std::string> folders,
                          FoldersIn(path));
  std::vector<ImageFile> files;
  for (const std::string& folder : folders) {
    const auto known = std::lower_bound(classes.begin(), classes.end(), folder);
    if (known == classes.end() || *known != folder) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": got class ", folder, ", want one of the ",
                       classes.size(), " classes in train"));
    }
    COHORT_ASSIGN_OR_RETURN(
        std::vector<ImageFile> found,
        ImagesIn(absl::StrCat(path, "/", folder),
                 static_cast<uint16_t>(known - classes.begin())));
    if (found.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, "/", folder, ": got no image, want .jpg, .jpeg or .png files"));
    }
    files.insert(files.end(), std::make_move_iterator(found.begin()),
                 std::make_move_iterator(found.end()));
  }
  return files;
}

absl::StatusOr<std::string> TestFolder(const std::string& dir) {
  for (const char* name : {"val", "test"}) {
    std::string path = absl::StrCat(dir, "/", name);
    if (IsFolder(path)) return path;
  }
  return absl::NotFoundError(absl::StrCat(
      dir, ": got neither a val nor a test folder, want one of them"));
}

}  // namespace

absl::StatusOr<ImageTable> ReadImageFolder(const DatasetOptions& options) {
  const std::string& dir = options.data_dir;
  COHORT_RETURN_IF_ERROR(
      CheckDataDir("imagefolder", dir, "train/CLASS and val/CLASS"));
  const std::string train_dir = absl::StrCat(dir, "/train");
  COHORT_ASSIGN_OR_RETURN(const std::string test_dir, TestFolder(dir));
  COHORT_ASSIGN_OR_RETURN(const std::vector<std::string> classes,
                          FoldersIn(train_dir));
  if (static_cast<int64_t>(classes.size()) > kLabelClassesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(train_dir, ": got ", classes.size(),
                     " classes, want at most ", kLabelClassesMax));
  }
  COHORT_ASSIGN_OR_RETURN(const std::vector<ImageFile> train,
                          ListSplit(train_dir, classes));
  COHORT_ASSIGN_OR_RETURN(const std::vector<ImageFile> test,
                          ListSplit(test_dir, classes));
  ImageTable table{.name = "imagefolder",
                   .classes = static_cast<int64_t>(classes.size())};
  COHORT_RETURN_IF_ERROR(LoadFiles(train, options, table, table.train));
  COHORT_RETURN_IF_ERROR(LoadFiles(test, options, table, table.test));
  return table;
}

}  // namespace cohort
