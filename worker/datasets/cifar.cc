#include "worker/datasets/cifar.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/datasets/files.h"

namespace cohort {
namespace {

constexpr int64_t kChannels = 3;
constexpr int64_t kSide = 32;
constexpr size_t kImageBytes = kChannels * kSide * kSide;

struct Layout {
  const char* archive_folder = "";
  std::vector<std::string> train;
  std::vector<std::string> test;
  int64_t classes = 0;
  // Label bytes before each image; the last one is the class.
  size_t label_bytes = 1;
};

Layout LayoutOf(const std::string& name) {
  if (name == "cifar100") {
    return {.archive_folder = "cifar-100-binary",
            .train = {"train.bin"},
            .test = {"test.bin"},
            .classes = 100,
            .label_bytes = 2};
  }
  Layout layout{.archive_folder = "cifar-10-batches-bin",
                .test = {"test_batch.bin"},
                .classes = 10};
  for (int batch = 1; batch <= 5; ++batch) {
    layout.train.push_back(absl::StrCat("data_batch_", batch, ".bin"));
  }
  return layout;
}

absl::Status AppendFile(const std::string& path, const Layout& layout,
                        ImageSplit& split) {
  COHORT_ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes, ReadBytes(path));
  const size_t record = layout.label_bytes + kImageBytes;
  if (bytes.empty() || bytes.size() % record != 0) {
    return absl::DataLossError(absl::StrCat(
        path, ": truncated or damaged: got ", bytes.size(),
        " bytes, want a multiple of ", record, ", the bytes of one sample"));
  }
  for (size_t at = 0; at < bytes.size(); at += record) {
    const uint8_t label = bytes[at + layout.label_bytes - 1];
    if (label >= layout.classes) {
      return absl::DataLossError(absl::StrCat(
          path, ": sample ", at / record, ": got class ",
          static_cast<int>(label), ", want 0 to ", layout.classes - 1));
    }
    split.labels.push_back(label);
    const uint8_t* image = bytes.data() + at + layout.label_bytes;
    split.pixels.insert(split.pixels.end(), image, image + kImageBytes);
    ++split.samples;
  }
  return absl::OkStatus();
}

absl::Status AppendFiles(const std::string& dir,
                         const std::vector<std::string>& names,
                         const Layout& layout, ImageSplit& split) {
  for (const std::string& name : names) {
    COHORT_RETURN_IF_ERROR(
        AppendFile(absl::StrCat(dir, "/", name), layout, split));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ImageTable> ReadCifar(const std::string& name,
                                     const std::string& data_dir) {
  COHORT_RETURN_IF_ERROR(CheckDataDir(name, data_dir, "binary files"));
  const Layout layout = LayoutOf(name);
  std::string dir = absl::StrCat(data_dir, "/", layout.archive_folder);
  if (!IsFolder(dir)) dir = data_dir;
  ImageTable table{.name = name,
                   .classes = layout.classes,
                   .channels = kChannels,
                   .height = kSide,
                   .width = kSide};
  COHORT_RETURN_IF_ERROR(AppendFiles(dir, layout.train, layout, table.train));
  COHORT_RETURN_IF_ERROR(AppendFiles(dir, layout.test, layout, table.test));
  return table;
}

}  // namespace cohort
