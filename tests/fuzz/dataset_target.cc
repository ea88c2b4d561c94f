#include <filesystem>
#include <string>
#include <vector>

#include "tests/fuzz/scratch_folder.h"
#include "tests/fuzz/target.h"
#include "tests/worker/datasets/written_images.h"
#include "worker/datasets/cifar.h"
#include "worker/datasets/idx.h"
#include "worker/datasets/voc.h"

namespace cohort::fuzz {
namespace {

constexpr char kVocTrain[] = "ImageSets/Segmentation/train.txt";
constexpr char kVocMask[] = "SegmentationClass/a.png";

// Big-endian, as IDX has its numbers.
std::string Number(uint32_t number) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) {
    bytes.push_back(static_cast<char>(number >> shift));
  }
  return bytes;
}

std::string IdxImages() {
  return Number(0x803) + Number(2) + Number(1) + Number(3) + "abcdef";
}

std::string IdxLabels() {
  return Number(0x801) + Number(2) + std::string("\x01\x09", 2);
}

// Folders with a small whole data set of each layout; the input replaces one
// file for the time of one run.
class Folders {
 public:
  Folders() {
    for (const char* folder : {"idx", "cifar", "voc/ImageSets/Segmentation",
                               "voc/JPEGImages", "voc/SegmentationClass"}) {
      std::filesystem::create_directories(scratch_.File(folder));
    }
    Reset();
  }

  const std::string path(absl::string_view name) const {
    return scratch_.File(name);
  }
  void Write(absl::string_view name, absl::string_view content) {
    scratch_.Write(name, content);
  }
  void Remove(absl::string_view name) {
    std::filesystem::remove(scratch_.File(name));
  }
  void Reset() {
    for (const char* split : {"train", "t10k"}) {
      Write(absl::StrCat("idx/", split, "-images-idx3-ubyte"), IdxImages());
      Write(absl::StrCat("idx/", split, "-labels-idx1-ubyte"), IdxLabels());
    }
    for (const char* split : {"train", "test"}) {
      Write(absl::StrCat("cifar/", split, ".bin"), std::string(3074, '\x05'));
    }
    Write(absl::StrCat("voc/", kVocTrain), "a\n");
    Write("voc/ImageSets/Segmentation/val.txt", "a\n");
    Write("voc/JPEGImages/a.png",
          PngBytes(Plain(2, 2, {1, 2, 3}), PngKind::kRgb));
    Write(absl::StrCat("voc/", kVocMask), MaskBytes(2, 2, {0, 1, 2, 255}));
  }

 private:
  ScratchFolder scratch_;
};

void CheckSplit(const ImageTable& table, const ImageSplit& split) {
  const int64_t area = table.height * table.width;
  COHORT_CHECK(static_cast<int64_t>(split.pixels.size()) ==
                   split.samples * table.channels * area,
               "the pixels do not fill the split");
  if (table.task == DatasetTask::kSegmentation) {
    COHORT_CHECK(
        static_cast<int64_t>(split.masks.size()) == split.samples * area,
        "the masks do not fill the split");
    return;
  }
  COHORT_CHECK(static_cast<int64_t>(split.labels.size()) == split.samples,
               "the labels do not fill the split");
  for (const uint16_t label : split.labels) {
    COHORT_CHECK(label < table.classes, absl::StrCat("label ", label));
  }
}

void CheckTable(const absl::StatusOr<ImageTable>& table) {
  RequireCode(table.status(),
              {absl::StatusCode::kNotFound, absl::StatusCode::kDataLoss,
               absl::StatusCode::kInvalidArgument,
               absl::StatusCode::kResourceExhausted});
  if (!table.ok()) return;
  CheckSplit(*table, table->train);
  CheckSplit(*table, table->test);
}

void RunDataset(absl::string_view input) {
  static Folders& folders = *new Folders();
  Reader reader(input);
  const int32_t kind = reader.Below(6);
  const absl::string_view bytes = reader.Rest();
  const char* const files[] = {
      "idx/train-images-idx3-ubyte",          "idx/t10k-labels-idx1-ubyte",
      "idx/train-labels-idx1-ubyte.gz",       "cifar/train.bin",
      "voc/ImageSets/Segmentation/train.txt", "voc/SegmentationClass/a.png"};
  // A packed file is read only where there is no plain one.
  if (kind == 2) folders.Remove("idx/train-labels-idx1-ubyte");
  folders.Write(files[kind], bytes);
  if (kind < 3) {
    CheckTable(ReadIdx("mnist", folders.path("idx")));
  } else if (kind == 3) {
    CheckTable(ReadCifar("cifar100", folders.path("cifar")));
  } else {
    CheckTable(ReadVoc({.name = "voc", .data_dir = folders.path("voc")}));
  }
  if (kind == 2) folders.Remove(files[kind]);
  folders.Reset();
}

std::vector<std::string> DatasetSeeds() {
  // gzip of IdxLabels with stored blocks would need zlib's writer; a header is
  // enough to begin with.
  const std::string gzip("\x02\x1f\x8b\x08\0\0\0\0\0\0\x03", 11);
  return {absl::StrCat(std::string(1, '\0'), IdxImages()),
          "\x01" + IdxLabels(),
          gzip,
          "\x02" + IdxLabels(),
          "\x03" + std::string(3074, '\x07'),
          "\x04"
          "a\na\n",
          "\x05" + MaskBytes(2, 2, {0, 1, 2, 255}, PngKind::kGrey)};
}

}  // namespace

Target DatasetTarget() {
  return {.name = "dataset",
          .run = RunDataset,
          .seeds = DatasetSeeds,
          .input_bytes_max = 4096,
          .mutations = 500};
}

}  // namespace cohort::fuzz
