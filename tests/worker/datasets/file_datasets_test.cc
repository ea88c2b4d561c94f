// Data sets stored in files: CIFAR, VOC and image folders.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"
#include "tests/worker/datasets/written_images.h"
#include "worker/datasets/dataset.h"

namespace cohort {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

void WriteFile(const TempDir& dir, const std::string& name,
               const std::string& content) {
  const std::string path = dir.File(name);
  std::filesystem::create_directories(
      std::filesystem::path(path).parent_path());
  WriteText(path, content);
}

// One record of CIFAR with a constant value in each channel.
std::string Record(const std::string& labels, const std::string& colour) {
  std::string record = labels;
  for (const char value : colour) record += std::string(32 * 32, value);
  return record;
}

void WriteCifar10(const TempDir& dir) {
  for (int batch = 1; batch <= 5; ++batch) {
    WriteFile(dir, absl::StrCat("data_batch_", batch, ".bin"),
              Record(std::string(1, static_cast<char>(batch)),
                     std::string("\0\0\0", 3)) +
                  Record(std::string(1, '\0'), "\x64\x64\x64"));
  }
  WriteFile(dir, "test_batch.bin", Record("\x9", std::string("\x64\0\x32", 3)));
}

class CifarDatasetTest : public testing::Test {
 protected:
  const TempDir dir_;
};

TEST_F(CifarDatasetTest, ReadsAllBatchesInOrder) {
  WriteCifar10(dir_);
  const auto data = Make({.name = "cifar10", .data_dir = dir_.path()});
  EXPECT_EQ(data->task(), DatasetTask::kClassification);
  EXPECT_EQ(data->classes(), 10);
  EXPECT_EQ(data->channels(), 3);
  EXPECT_EQ(data->height(), 32);
  EXPECT_EQ(data->width(), 32);
  EXPECT_EQ(data->test_size(), 1);
  std::vector<int64_t> all(10);
  std::iota(all.begin(), all.end(), int64_t{0});
  EXPECT_EQ(data->train_size(), 10);
  EXPECT_THAT(Labels(*data, DataSplit::kTrain, all),
              ElementsAre(1, 0, 2, 0, 3, 0, 4, 0, 5, 0));
  // Each channel of the train split is 0 and 100 in equal parts: mean and
  // deviation 50.
  const std::vector<int64_t> first = {0};
  const Samples test =
      ReadSamples(*data, {.split = DataSplit::kTest, .indices = first});
  EXPECT_THAT(test.labels, ElementsAre(9));
  EXPECT_EQ(test.images[0], 1);
  EXPECT_EQ(test.images[1024], -1);
  EXPECT_EQ(test.images[3071], 0);
}

TEST_F(CifarDatasetTest, TheArchivesFolderIsFoundToo) {
  const TempDir plain;
  WriteCifar10(plain);
  std::filesystem::copy(plain.path(), dir_.File("cifar-10-batches-bin"));
  const auto data = Make({.name = "cifar10", .data_dir = dir_.path()});
  const auto same = Make({.name = "cifar10", .data_dir = plain.path()});
  EXPECT_EQ(data->digest(), same->digest());
}

TEST_F(CifarDatasetTest, OfTwoLabelsTheFineOneCounts) {
  WriteFile(dir_, "train.bin",
            Record("\x13\x63", "abc") + Record("\x1\x2", "abd"));
  WriteFile(dir_, "test.bin", Record("\x4\x5", "abc"));
  const auto data = Make({.name = "cifar100", .data_dir = dir_.path()});
  EXPECT_EQ(data->classes(), 100);
  EXPECT_THAT(Labels(*data, DataSplit::kTrain, {0, 1}), ElementsAre(99, 2));
  EXPECT_THAT(Labels(*data, DataSplit::kTest, {0}), ElementsAre(5));
}

TEST_F(CifarDatasetTest, TrainingIsFlippedAndCroppedUnlessToldNot) {
  WriteCifar10(dir_);
  EXPECT_EQ(Make({.name = "cifar10", .data_dir = dir_.path()})->name(),
            "cifar10 (flip,crop)");
  EXPECT_EQ(Make({.name = "cifar10",
                  .data_dir = dir_.path(),
                  .augment = Augmentations{}})
                ->name(),
            "cifar10");
}

TEST_F(CifarDatasetTest, PipesAndFilesOfATerabyteAreNamed) {
  WriteCifar10(dir_);
  const std::string path = dir_.File("data_batch_3.bin");
  const DatasetOptions options = {.name = "cifar10", .data_dir = dir_.path()};
  std::filesystem::resize_file(path, uintmax_t{1} << 40);
  EXPECT_THAT(MakeDataset(options),
              IsError(kDataLoss, path + ": got 1099511627776 bytes"));
  std::filesystem::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(MakeDataset(options),
              IsError(kDataLoss, path + ": not a regular file"));
}

TEST_F(CifarDatasetTest, NamesTheFileAndWhatIsWrongWithIt) {
  WriteCifar10(dir_);
  const std::string path = dir_.File("data_batch_3.bin");
  const auto status = [&] {
    return MakeDataset({.name = "cifar10", .data_dir = dir_.path()}).status();
  };
  const std::string whole = ReadText(path);
  for (const size_t kept : {whole.size() - 1, size_t{5000}, size_t{0}}) {
    WriteText(path, whole.substr(0, kept));
    EXPECT_EQ(status().code(), kDataLoss);
    EXPECT_THAT(std::string(status().message()),
                AllOf(HasSubstr(path),
                      HasSubstr(absl::StrCat(
                          "got ", kept, " bytes, want a multiple of 3073"))));
  }
  WriteText(path, Record("\x1", "abc") + Record("\xa", "abc"));
  EXPECT_THAT(status(),
              IsError(kDataLoss, "data_batch_3.bin: sample 1: got class 10"));
  std::filesystem::remove(path);
  EXPECT_THAT(status(), IsError(kNotFound, path));
}

// Three train samples and one of val, 2x4 pixels, PNG images so that numbers
// are exact. Masks show the classes 0 to 2 and the ignored 255.
void WriteVoc(const TempDir& dir) {
  WriteFile(dir, "ImageSets/Segmentation/train.txt", "a\nb\n\n c \r\n");
  WriteFile(dir, "ImageSets/Segmentation/val.txt", "d");
  const std::vector<std::pair<const char*, uint8_t>> images = {
      {"a", 10}, {"b", 20}, {"c", 30}, {"d", 20}};
  for (const auto& [name, grey] : images) {
    WriteFile(dir, absl::StrCat("JPEGImages/", name, ".png"),
              PngBytes(Plain(2, 4, {grey, 0, grey}), PngKind::kRgb));
  }
  WriteFile(dir, "SegmentationClass/a.png",
            MaskBytes(2, 4, {0, 0, 1, 1, 0, 0, 1, 255}));
  WriteFile(dir, "SegmentationClass/b.png",
            MaskBytes(2, 4, {2, 2, 2, 2, 0, 0, 0, 0}, PngKind::kGrey));
  WriteFile(dir, "SegmentationClass/c.png",
            MaskBytes(2, 4, {1, 1, 1, 1, 1, 1, 1, 1}));
  WriteFile(dir, "SegmentationClass/d.png",
            MaskBytes(2, 4, {0, 1, 2, 255, 0, 1, 2, 255}));
}

DatasetOptions Voc(const TempDir& dir) {
  return {.name = "voc",
          .data_dir = dir.path(),
          .augment = Augmentations{},
          .loader_threads = 2};
}

class VocDatasetTest : public testing::Test {
 protected:
  VocDatasetTest() { WriteVoc(dir_); }

  const TempDir dir_;
  DatasetOptions options_ = Voc(dir_);
};

TEST_F(VocDatasetTest, ReadsImagesWithTheirMasks) {
  const auto data = Make(options_);
  EXPECT_EQ(data->task(), DatasetTask::kSegmentation);
  EXPECT_EQ(data->classes(), 3);
  EXPECT_EQ(data->channels(), 3);
  EXPECT_EQ(data->height(), 2);
  EXPECT_EQ(data->width(), 4);
  EXPECT_EQ(data->train_size(), 3);
  EXPECT_EQ(data->test_size(), 1);
  EXPECT_EQ(data->labels_per_sample(), 8);
  EXPECT_THAT(Labels(*data, DataSplit::kTrain, {1, 0}),
              ElementsAre(2, 2, 2, 2, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 1, -1));
  EXPECT_THAT(Labels(*data, DataSplit::kTest, {0}),
              ElementsAre(0, 1, 2, -1, 0, 1, 2, -1));
  // Red is 10, 20 and 30 in train: the middle one, and 20 in val, is 0.
  const std::vector<int64_t> second = {1};
  EXPECT_EQ(ReadSamples(*data, {.indices = second}).images[0], 0);
}

TEST_F(VocDatasetTest, TheNumberOfClassesCanBeGiven) {
  options_.classes = 21;
  EXPECT_EQ(Make(options_)->classes(), 21);
}

TEST_F(VocDatasetTest, AnotherNumberCanBeIgnored) {
  for (const char* name : {"a", "d"}) {
    WriteFile(dir_, absl::StrCat("SegmentationClass/", name, ".png"),
              MaskBytes(2, 4, {0, 1, 2, 0, 0, 1, 2, 0}));
  }
  options_.ignore_index = 0;
  const auto data = Make(options_);
  EXPECT_THAT(Labels(*data, DataSplit::kTest, {0}),
              ElementsAre(-1, 1, 2, -1, -1, 1, 2, -1));
}

TEST_F(VocDatasetTest, ImagesAndMasksAreResizedOnLoading) {
  WriteFile(dir_, "JPEGImages/b.png",
            PngBytes(Plain(4, 8, {20, 0, 20}), PngKind::kRgb));
  WriteFile(dir_, "SegmentationClass/b.png",
            MaskBytes(4, 8, std::vector<uint8_t>(32, 2)));
  options_.image_size = ImageSize{.height = 2, .width = 2};
  const auto data = Make(options_);
  EXPECT_EQ(data->height(), 2);
  EXPECT_EQ(data->width(), 2);
  // Centres of the new pixels lie on the second and fourth of four columns.
  EXPECT_THAT(Labels(*data, DataSplit::kTest, {0}), ElementsAre(1, -1, 1, -1));
  EXPECT_THAT(Labels(*data, DataSplit::kTrain, {1}), ElementsAre(2, 2, 2, 2));
}

TEST_F(VocDatasetTest, IsAugmentedUnlessToldNot) {
  options_.augment.reset();
  EXPECT_EQ(Make(options_)->name(), "voc (flip,crop,scale,jitter)");
}

TEST_F(VocDatasetTest, AnyNumberOfThreadsLoadsTheSame) {
  std::string names;
  for (int i = 0; i < 60; ++i) {
    const std::string name = absl::StrCat("n", i);
    names += name + "\n";
    WriteFile(dir_, absl::StrCat("JPEGImages/", name, ".jpg"),
              JpegBytes(Plain(2, 4, {static_cast<uint8_t>(4 * i), 9, 9})));
    WriteFile(
        dir_, absl::StrCat("SegmentationClass/", name, ".png"),
        MaskBytes(2, 4, std::vector<uint8_t>(8, static_cast<uint8_t>(i % 5))));
  }
  // One sample, in the middle, is left out.
  WriteFile(dir_, "JPEGImages/n30.jpg", "no image");
  WriteFile(dir_, "ImageSets/Segmentation/train.txt", names);
  options_.bad_samples = BadSamples::kSkip;
  std::vector<std::string> digests;
  for (const int32_t threads : {1, 2, 3, 8}) {
    options_.loader_threads = threads;
    const auto data = Make(options_);
    EXPECT_EQ(data->train_size(), 59);
    EXPECT_EQ(Labels(*data, DataSplit::kTrain, {29, 30})[8], 31 % 5);
    digests.push_back(data->digest());
  }
  EXPECT_EQ(digests, std::vector<std::string>(4, digests[0]));
}

TEST_F(VocDatasetTest, SkippedSamplesAreToldAndChangeTheDigest) {
  const auto whole = Make(options_);
  const std::string path = dir_.File("JPEGImages/b.png");
  WriteText(path, ReadText(path).substr(0, 60));
  options_.bad_samples = BadSamples::kSkip;
  testing::internal::CaptureStderr();
  const auto data = Make(options_);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(data->train_size(), 2);
  // Samples a and c remain; c is class 1 everywhere.
  EXPECT_EQ(Labels(*data, DataSplit::kTrain, {1})[0], 1);
  EXPECT_NE(data->digest(), whole->digest());
  EXPECT_THAT(log, HasSubstr(path));
  EXPECT_THAT(log, HasSubstr("voc: 1 of 3 samples were skipped"));
}

// Files of the folder by their names in it.
using FileChanges =
    std::vector<std::pair<std::string, std::optional<std::string>>>;

struct FileErrorCase {
  const char* situation = "";
  // The file that is written, or removed if there is no content.
  FileChanges files = {};
  // Cut in half.
  std::string truncated = "";
  std::function<void(DatasetOptions&)> change = [](DatasetOptions&) {};
  absl::StatusCode code = kInvalidArgument;
  std::string why;
  // If false, the error is reported under either policy of bad samples.
  bool skippable = false;
};

void Truncate(const std::string& path) {
  const std::string whole = ReadText(path);
  WriteText(path, whole.substr(0, whole.size() / 2));
}

std::vector<FileErrorCase> DamageCases() {
  const std::string jpeg = JpegBytes(Plain(2, 4, {1, 2, 3}));
  return {
      {.situation = "truncated JPEG image",
       .files = {{"JPEGImages/b.png", std::nullopt},
                 {"JPEGImages/b.jpg", jpeg.substr(0, jpeg.size() - 4)}},
       .code = kDataLoss,
       .why = "JPEGImages/b.jpg: damaged JPEG image: Premature end",
       .skippable = true},
      {.situation = "truncated PNG image",
       .truncated = "JPEGImages/c.png",
       .code = kDataLoss,
       .why = "JPEGImages/c.png: damaged PNG image: unexpected end of file",
       .skippable = true},
      {.situation = "truncated mask",
       .truncated = "SegmentationClass/d.png",
       .code = kDataLoss,
       .why = "SegmentationClass/d.png: damaged PNG image",
       .skippable = true},
      {.situation = "mask of another size",
       .files = {{"SegmentationClass/b.png",
                  MaskBytes(4, 2, std::vector<uint8_t>(8, 1))}},
       .why = "SegmentationClass/b.png: got 4x2 pixels, want 2x4"},
      {.situation = "mask of colours",
       .files = {{"SegmentationClass/b.png",
                  PngBytes(Plain(2, 4, {1, 2, 3}), PngKind::kRgb)}},
       .why = "SegmentationClass/b.png: got a mask in RGB of 8 bits"},
      {.situation = "image of another size",
       .files = {{"JPEGImages/c.png",
                  PngBytes(Plain(3, 4, {1, 2, 3}), PngKind::kRgb)},
                 {"SegmentationClass/c.png",
                  MaskBytes(3, 4, std::vector<uint8_t>(12, 1))}},
       .why = "JPEGImages/c.png: got 3x4 pixels, want 2x4 like the images"},
  };
}

std::vector<FileErrorCase> ContentCases() {
  const std::string ignored = MaskBytes(2, 4, std::vector<uint8_t>(8, 255));
  return {
      {.situation = "class beyond those given",
       .change = [](DatasetOptions& o) { o.classes = 2; },
       .why = "SegmentationClass/b.png: row 0, column 0: got class 2"},
      {.situation = "255 where something else is ignored",
       .change = [](DatasetOptions& o) { o.ignore_index = -1; },
       .why = "SegmentationClass/a.png: row 1, column 3: got class 255"},
      {.situation = "empty split file",
       .files = {{"ImageSets/Segmentation/val.txt", " \n\n"}},
       .why = "ImageSets/Segmentation/val.txt: got an empty file"},
      {.situation = "no split file",
       .files = {{"ImageSets/Segmentation/train.txt", std::nullopt}},
       .code = kNotFound,
       .why = "ImageSets/Segmentation/train.txt: cannot read: No such file"},
      {.situation = "a name without an image",
       .files = {{"ImageSets/Segmentation/train.txt", "a\nnone\n"}},
       .code = kNotFound,
       .why = "train.txt: got the name 'none', but there is no image"},
      {.situation = "a name without a mask",
       .files = {{"SegmentationClass/c.png", std::nullopt}},
       .code = kNotFound,
       .why = "train.txt: got the name 'c', but there is no mask"},
      {.situation = "nothing but ignored pixels",
       .files = {{"SegmentationClass/a.png", ignored},
                 {"SegmentationClass/b.png", ignored},
                 {"SegmentationClass/c.png", ignored},
                 {"SegmentationClass/d.png", ignored}},
       .why = "SegmentationClass: got only masks of 255 (ignored)"},
      {.situation = "too many classes asked for",
       .change = [](DatasetOptions& o) { o.classes = 256; },
       .why = "--classes: got 256, want 1 to 255"},
      {.situation = "an ignored number that no byte has",
       .change = [](DatasetOptions& o) { o.ignore_index = 256; },
       .why = "--ignore_index: got 256, want 0 to 255, or -1 for none"},
  };
}

void ExpectErrors(const std::vector<FileErrorCase>& cases) {
  for (const FileErrorCase& c : cases) {
    for (const BadSamples policy : {BadSamples::kStop, BadSamples::kSkip}) {
      if (c.skippable && policy == BadSamples::kSkip) continue;
      SCOPED_TRACE(c.situation);
      const TempDir dir;
      WriteVoc(dir);
      for (const auto& [name, content] : c.files) {
        if (content.has_value()) {
          WriteFile(dir, name, *content);
        } else {
          std::filesystem::remove(dir.File(name));
        }
      }
      if (!c.truncated.empty()) Truncate(dir.File(c.truncated));
      DatasetOptions options = Voc(dir);
      options.bad_samples = policy;
      c.change(options);
      EXPECT_THAT(MakeDataset(options), IsError(c.code, c.why));
    }
  }
}

TEST_F(VocDatasetTest, NamesDamagedFilesAndWhatIsWrongWithThem) {
  ExpectErrors(DamageCases());
}

TEST_F(VocDatasetTest, NamesContentThatBreaksTheRules) {
  ExpectErrors(ContentCases());
}

TEST_F(VocDatasetTest, WhereNoSampleIsLeftSkippingIsAnError) {
  Truncate(dir_.File("JPEGImages/d.png"));
  options_.bad_samples = BadSamples::kSkip;
  EXPECT_THAT(MakeDataset(options_),
              IsError(kInvalidArgument, "voc: none of 1 samples"));
}

TEST_F(VocDatasetTest, AMissingFolderIsNamed) {
  EXPECT_THAT(MakeDataset({.name = "voc", .data_dir = dir_.File("none")}),
              IsError(kNotFound, "none: no such folder"));
  for (const char* name : {"voc", "imagefolder", "cifar10"}) {
    EXPECT_THAT(MakeDataset({.name = name}),
                IsError(kInvalidArgument,
                        absl::StrCat(name, " has no default folder")));
  }
}

void WriteFolders(const TempDir& dir, const std::string& test_folder) {
  WriteFile(dir, "train/dog/2.jpg", JpegBytes(Plain(4, 4, {40})));
  WriteFile(dir, "train/dog/1.PNG",
            PngBytes(Plain(4, 4, {20, 20, 20}), PngKind::kRgb));
  WriteFile(dir, "train/dog/notes.txt", "not an image");
  WriteFile(dir, "train/cat/x.jpeg", JpegBytes(Plain(4, 4, {30, 30, 30})));
  WriteFile(dir, "train/.hidden/x.jpeg", "no class");
  WriteFile(dir, absl::StrCat(test_folder, "/dog/9.jpg"),
            JpegBytes(Plain(4, 4, {30})));
}

TEST(ImageFolderTest, FoldersAreClassesInTheOrderOfTheirNames) {
  for (const char* test_folder : {"val", "test"}) {
    const TempDir dir;
    WriteFolders(dir, test_folder);
    const auto data = Make({.name = "imagefolder", .data_dir = dir.path()});
    EXPECT_EQ(data->name(), "imagefolder");
    EXPECT_EQ(data->task(), DatasetTask::kClassification);
    EXPECT_EQ(data->classes(), 2);
    EXPECT_EQ(data->channels(), 3);
    EXPECT_EQ(data->train_size(), 3);
    EXPECT_THAT(Labels(*data, DataSplit::kTrain, {0, 1, 2}),
                ElementsAre(0, 1, 1));
    EXPECT_THAT(Labels(*data, DataSplit::kTest, {0}), ElementsAre(1));
    // 30, 20, 40, within JPEG's rounding: 1.PNG is the darkest.
    const std::vector<int64_t> all = {0, 1, 2};
    const std::vector<float> images =
        ReadSamples(*data, {.indices = all}).images;
    EXPECT_NEAR(images[0], 0, 0.2);
    EXPECT_LT(images[48], -1);
    EXPECT_GT(images[96], 1);
  }
}

TEST(ImageFolderTest, BreachesOfTheLayoutAreNamed) {
  const auto status_after = [](auto spoil) {
    const TempDir dir;
    WriteFolders(dir, "val");
    spoil(dir);
    return MakeDataset({.name = "imagefolder", .data_dir = dir.path()})
        .status();
  };
  EXPECT_THAT(status_after([](const TempDir& dir) {
                WriteFile(dir, "val/bird/1.jpg", JpegBytes(Plain(4, 4, {40})));
              }),
              IsError(kInvalidArgument, "val: got class bird"));
  EXPECT_THAT(status_after([](const TempDir& dir) {
                std::filesystem::create_directory(dir.File("train/bird"));
              }),
              IsError(kInvalidArgument, "train/bird: got no image"));
  EXPECT_THAT(status_after([](const TempDir& dir) {
                std::filesystem::remove_all(dir.File("val"));
              }),
              IsError(kNotFound, "val nor a test folder"));
  EXPECT_THAT(status_after([](const TempDir& dir) {
                std::filesystem::remove_all(dir.File("train"));
              }),
              IsError(kNotFound, "/train"));
  EXPECT_THAT(status_after([](const TempDir& dir) {
                WriteFile(dir, "train/cat/x.jpeg", "");
              }),
              IsError(kDataLoss, "train/cat/x.jpeg: got 0 bytes"));
}

TEST(MakeDatasetTest, OnlyVocIsToldItsClasses) {
  EXPECT_THAT(MakeDataset({.name = "synthetic", .classes = 3}),
              IsError(kInvalidArgument, "--classes: got 3"));
}

TEST(MakeDatasetTest, SetsInOneFileAreResizedToo) {
  const auto data = Make({.name = "synthetic",
                          .image_size = ImageSize{.height = 32, .width = 20},
                          .synthetic_train = 3,
                          .synthetic_test = 1});
  EXPECT_EQ(data->height(), 32);
  EXPECT_EQ(data->width(), 20);
  const std::vector<int64_t> all = {0, 1, 2};
  EXPECT_EQ(ReadSamples(*data, {.indices = all}).images.size(), 3U * 32 * 20);
}

}  // namespace
}  // namespace cohort
