#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "tests/fakes/statuses.h"
#include "tests/fakes/temp_dir.h"
#include "tests/worker/datasets/written_images.h"
#include "worker/datasets/dataset.h"

namespace cohort {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kFashionMnist[] = "/usr/share/datasets/fashion-mnist";

void AppendBigEndian(std::string& text, uint32_t number) {
  for (int shift : {24, 16, 8, 0}) {
    text.push_back(static_cast<char>(number >> shift & 0xff));
  }
}

std::string Idx(uint32_t magic, const std::vector<uint32_t>& extents,
                const std::string& content) {
  std::string file;
  AppendBigEndian(file, magic);
  for (uint32_t extent : extents) AppendBigEndian(file, extent);
  return file + content;
}

std::string Gzip(const std::string& path, const std::string& text) {
  gzFile file = gzopen(path.c_str(), "wb");
  EXPECT_EQ(gzwrite(file, text.data(), static_cast<unsigned>(text.size())),
            static_cast<int>(text.size()));
  EXPECT_EQ(gzclose(file), Z_OK);
  return path;
}

// Three train and two test images of 1x2 pixels. Train pixels are 0, 0, 0,
// 200, 200, 200: mean 100, deviation 100, so that 0 becomes -1 and 200 +1.
struct Files {
  std::string train_images =
      Idx(0x803, {3, 1, 2}, std::string("\0\0\0\xc8\xc8\xc8", 6));
  std::string train_labels = Idx(0x801, {3}, std::string("\7\0\1", 3));
  std::string test_images =
      Idx(0x803, {2, 1, 2}, std::string("\x64\x64\0\x64", 4));
  std::string test_labels = Idx(0x801, {2}, std::string("\2\3", 2));
};

std::string WriteFiles(const TempDir& dir, const Files& files) {
  WriteText(dir.File("train-images-idx3-ubyte"), files.train_images);
  WriteText(dir.File("train-labels-idx1-ubyte"), files.train_labels);
  WriteText(dir.File("t10k-images-idx3-ubyte"), files.test_images);
  WriteText(dir.File("t10k-labels-idx1-ubyte"), files.test_labels);
  return dir.path();
}

std::vector<float> Images(const Dataset& data, DataSplit split,
                          const std::vector<int64_t>& indices) {
  return ReadSamples(data, {.split = split, .indices = indices}).images;
}

class IdxDatasetTest : public testing::Test {
 protected:
  const TempDir dir_;
};

TEST_F(IdxDatasetTest, ReadsImagesAndLabelsInTheOrderAsked) {
  const auto data =
      Make({.name = "mnist", .data_dir = WriteFiles(dir_, Files())});
  EXPECT_EQ(data->name(), "mnist");
  EXPECT_EQ(data->classes(), 10);
  EXPECT_EQ(data->channels(), 1);
  EXPECT_EQ(data->height(), 1);
  EXPECT_EQ(data->width(), 2);
  EXPECT_EQ(data->train_size(), 3);
  EXPECT_EQ(data->test_size(), 2);
  EXPECT_THAT(Images(*data, DataSplit::kTrain, {2, 1, 0, 2}),
              ElementsAre(1, 1, -1, 1, -1, -1, 1, 1));
  EXPECT_THAT(Labels(*data, DataSplit::kTrain, {2, 1, 0, 2}),
              ElementsAre(1, 0, 7, 1));
}

TEST_F(IdxDatasetTest, TheTestSplitIsNormalisedByTheTrainSplit) {
  const auto data =
      Make({.name = "mnist", .data_dir = WriteFiles(dir_, Files())});
  EXPECT_THAT(Images(*data, DataSplit::kTest, {0, 1}),
              ElementsAre(0, 0, -1, 0));
  EXPECT_THAT(Labels(*data, DataSplit::kTest, {0, 1}), ElementsAre(2, 3));
}

TEST_F(IdxDatasetTest, PixelsThatAreAllTheSameBecomeZero) {
  Files files;
  files.train_images = Idx(0x803, {3, 1, 2}, std::string(6, '\x05'));
  const auto data =
      Make({.name = "mnist", .data_dir = WriteFiles(dir_, files)});
  EXPECT_THAT(Images(*data, DataSplit::kTrain, {0}), ElementsAre(0, 0));
}

TEST_F(IdxDatasetTest, GzipOrNotIsTheSameData) {
  const TempDir plain;
  const TempDir packed;
  const Files files;
  WriteFiles(plain, files);
  Gzip(packed.File("train-images-idx3-ubyte.gz"), files.train_images);
  Gzip(packed.File("train-labels-idx1-ubyte.gz"), files.train_labels);
  Gzip(packed.File("t10k-images-idx3-ubyte.gz"), files.test_images);
  Gzip(packed.File("t10k-labels-idx1-ubyte.gz"), files.test_labels);
  const auto a = Make({.name = "mnist", .data_dir = plain.path()});
  const auto b = Make({.name = "mnist", .data_dir = packed.path()});
  EXPECT_EQ(a->digest(), b->digest());
  EXPECT_EQ(Images(*a, DataSplit::kTrain, {0, 1, 2}),
            Images(*b, DataSplit::kTrain, {0, 1, 2}));
}

TEST_F(IdxDatasetTest, TheDigestSeesEveryPartOfTheContent) {
  std::vector<std::string> digests;
  for (int changed = 0; changed < 5; ++changed) {
    Files files;
    std::array<std::string*, 4> parts = {
        &files.train_images, &files.train_labels, &files.test_images,
        &files.test_labels};
    if (changed < 4) parts[static_cast<size_t>(changed)]->back() ^= 1;
    const TempDir dir;
    const auto data =
        Make({.name = "mnist", .data_dir = WriteFiles(dir, files)});
    EXPECT_THAT(data->digest(), testing::MatchesRegex("[0-9a-f]+"));
    EXPECT_EQ(data->digest().size(), 16u);
    digests.push_back(data->digest());
  }
  std::sort(digests.begin(), digests.end());
  EXPECT_EQ(std::unique(digests.begin(), digests.end()), digests.end());
}

struct ErrorCase {
  const char* situation;
  Files files;
  absl::StatusCode code = kDataLoss;
  std::string why;
};

std::vector<ErrorCase> ErrorCases() {
  const auto changed = [](auto change) {
    Files files;
    change(files);
    return files;
  };
  return {
      {.situation = "wrong magic number",
       .files = changed([](Files& f) { f.train_images[3] = 1; }),
       .why = "train-images-idx3-ubyte: got magic number 0x801, want 0x803"},
      {.situation = "truncated content",
       .files = changed([](Files& f) { f.train_images.resize(16 + 4); }),
       .why = "train-images-idx3-ubyte: truncated or damaged: got 4 bytes"},
      {.situation = "truncated header",
       .files = changed([](Files& f) { f.test_labels.resize(5); }),
       .why = "t10k-labels-idx1-ubyte: truncated or damaged: got 5 bytes"},
      {.situation = "empty file",
       .files = changed([](Files& f) { f.test_images.clear(); }),
       .why = "t10k-images-idx3-ubyte: truncated or damaged: got 0 bytes"},
      {.situation = "bytes after the end",
       .files = changed([](Files& f) { f.train_labels += "x"; }),
       .why = "train-labels-idx1-ubyte: got more than the 3 bytes"},
      {.situation = "header announces more than any memory",
       .files = changed([](Files& f) {
         f.train_images = Idx(0x803, {0xffffffff, 0xffffffff, 28}, "");
       }),
       .why = "train-images-idx3-ubyte: got extent 4294967295"},
      {.situation = "no images",
       .files = changed([](Files& f) {
         f.train_images = Idx(0x803, {0, 1, 2}, "");
       }),
       .why = "train-images-idx3-ubyte: got extent 0, want at least 1"},
      {.situation = "label out of range",
       .files = changed([](Files& f) { f.train_labels[9] = 10; }),
       .why = "train-labels-idx1-ubyte: sample 1: got label 10, want 0 to 9"},
      {.situation = "fewer labels than images",
       .files =
           changed([](Files& f) { f.train_labels = Idx(0x801, {2}, "\1\1"); }),
       .why = "train-labels-idx1-ubyte: got 2 labels, want 3"},
      {.situation = "test images of another size",
       .files = changed([](Files& f) {
         f.test_images = Idx(0x803, {2, 2, 1}, std::string(4, '\0'));
       }),
       .why = "test images are 2x1, train images 1x2"},
  };
}

TEST_F(IdxDatasetTest, NamesTheFileAndWhatIsWrongWithIt) {
  for (const ErrorCase& c : ErrorCases()) {
    SCOPED_TRACE(c.situation);
    const TempDir dir;
    const absl::Status status =
        MakeDataset({.name = "mnist", .data_dir = WriteFiles(dir, c.files)})
            .status();
    EXPECT_EQ(status.code(), c.code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.why));
    EXPECT_THAT(std::string(status.message()), HasSubstr(dir.path()));
  }
}

// The header claims 3.9 GiB that the file lacks: allocating them would fail on
// a machine with less memory.
TEST_F(IdxDatasetTest, MemoryIsTakenForWhatIsThereOnly) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the address sanitizer itself needs more than the limit";
#endif
  const TempDir dir;
  Files files;
  files.train_images = Idx(0x803, {0xf0000000, 1, 1}, "few");
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  rlimit small = before;
  small.rlim_cur = rlim_t{1} << 31;
  ASSERT_EQ(setrlimit(RLIMIT_AS, &small), 0);
  const absl::Status status =
      MakeDataset({.name = "mnist", .data_dir = WriteFiles(dir, files)})
          .status();
  setrlimit(RLIMIT_AS, &before);
  EXPECT_THAT(status, IsError(kDataLoss, "got 3 bytes, want 4026531840"));
}

TEST_F(IdxDatasetTest, APipeInPlaceOfAFileIsNotWaitedFor) {
  WriteFiles(dir_, Files());
  const std::string path = dir_.File("train-images-idx3-ubyte");
  std::filesystem::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(MakeDataset({.name = "mnist", .data_dir = dir_.path()}),
              IsError(kDataLoss, path + ": not a regular file"));
}

TEST_F(IdxDatasetTest, ATruncatedOrChangedGzipFileIsDataLoss) {
  WriteFiles(dir_, Files());
  std::filesystem::remove(dir_.File("train-images-idx3-ubyte"));
  const std::string path =
      Gzip(dir_.File("train-images-idx3-ubyte.gz"), Files().train_images);
  const std::string packed = ReadText(path);
  // Cut inside the data, and inside the checksum and length behind it.
  for (size_t lost : {size_t{12}, size_t{3}}) {
    WriteText(path, packed.substr(0, packed.size() - lost));
    EXPECT_TRUE(absl::IsDataLoss(
        MakeDataset({.name = "mnist", .data_dir = dir_.path()}).status()));
  }
  // A wrong checksum: the last 8 bytes are CRC-32 and length.
  std::string wrong = packed;
  wrong[packed.size() - 8] ^= 1;
  WriteText(path, wrong);
  EXPECT_TRUE(absl::IsDataLoss(
      MakeDataset({.name = "mnist", .data_dir = dir_.path()}).status()));
}

TEST_F(IdxDatasetTest, MissingFoldersAndFilesAreNamed) {
  EXPECT_THAT(MakeDataset({.name = "mnist", .data_dir = dir_.File("none")}),
              IsError(kNotFound, "none: no such folder"));
  WriteFiles(dir_, Files());
  std::filesystem::remove(dir_.File("t10k-labels-idx1-ubyte"));
  EXPECT_THAT(MakeDataset({.name = "mnist", .data_dir = dir_.path()}),
              IsError(kNotFound, "t10k-labels-idx1-ubyte: no such file"));
}

TEST(MakeDatasetTest, AnUnknownNameListsTheKnownOnes) {
  EXPECT_THAT(MakeDataset({.name = "imagenet"}),
              IsError(kInvalidArgument, "got imagenet, want fashion-mnist"));
}

TEST(SyntheticDatasetTest, IsTheSameEveryTime) {
  const DatasetOptions options = {
      .name = "synthetic", .synthetic_train = 20, .synthetic_test = 5};
  const auto a = Make(options);
  const auto b = Make(options);
  EXPECT_EQ(a->train_size(), 20);
  EXPECT_EQ(a->test_size(), 5);
  EXPECT_EQ(a->digest(), b->digest());
  EXPECT_EQ(Images(*a, DataSplit::kTrain, {0, 19}),
            Images(*b, DataSplit::kTrain, {0, 19}));
  EXPECT_NE(Images(*a, DataSplit::kTrain, {0}),
            Images(*a, DataSplit::kTest, {0}));
}

// The nearest class mean of the train split, the simplest classifier there
// is, must do far better on the test split than the 1 in 10 of guessing.
TEST(SyntheticDatasetTest, CanBeLearned) {
  const auto data = Make({.name = "synthetic"});
  const auto pixels = static_cast<size_t>(data->height() * data->width());
  std::vector<std::vector<double>> sums(10, std::vector<double>(pixels));
  std::vector<double> counts(10);
  for (int64_t i = 0; i < data->train_size(); ++i) {
    const auto label =
        static_cast<size_t>(Labels(*data, DataSplit::kTrain, {i})[0]);
    const std::vector<float> image = Images(*data, DataSplit::kTrain, {i});
    counts[label] += 1;
    for (size_t p = 0; p < pixels; ++p) sums[label][p] += image[p];
  }
  int64_t correct = 0;
  for (int64_t i = 0; i < data->test_size(); ++i) {
    const std::vector<float> image = Images(*data, DataSplit::kTest, {i});
    std::vector<double> distances(10);
    for (size_t c = 0; c < 10; ++c) {
      for (size_t p = 0; p < pixels; ++p) {
        const double d = image[p] - sums[c][p] / counts[c];
        distances[c] += d * d;
      }
    }
    const auto nearest = std::min_element(distances.begin(), distances.end()) -
                         distances.begin();
    correct += nearest == Labels(*data, DataSplit::kTest, {i})[0];
  }
  EXPECT_GT(correct, data->test_size() / 2) << "of " << data->test_size();
}

TEST(SyntheticShapesTest, HaveMasksOfFourClassesAndIgnoredRims) {
  const auto data = Make({.name = "synthetic-segmentation"});
  EXPECT_EQ(data->name(), "synthetic-segmentation");
  EXPECT_EQ(data->task(), DatasetTask::kSegmentation);
  EXPECT_EQ(data->classes(), 4);
  EXPECT_EQ(data->channels(), 3);
  EXPECT_EQ(data->train_size(), 512);
  EXPECT_EQ(data->test_size(), 128);
  EXPECT_EQ(data->digest(), Make({.name = "synthetic-segmentation"})->digest());
}

// Brightness alone finds the shapes, but does not tell them apart: only form
// remains to be learned.
TEST(SyntheticShapesTest, BrightnessTellsShapesFromGroundAndNotApart) {
  const auto data = Make({.name = "synthetic-segmentation"});
  const auto plane = static_cast<size_t>(data->height() * data->width());
  std::array<double, 4> sums = {};
  std::array<double, 4> counts = {};
  for (int64_t i = 0; i < data->train_size(); ++i) {
    const std::vector<int64_t> one = {i};
    const Samples sample = ReadSamples(*data, {.indices = one});
    for (size_t p = 0; p < plane; ++p) {
      if (sample.labels[p] == kIgnoredLabel) continue;
      const auto label = static_cast<size_t>(sample.labels[p]);
      counts[label] += 1;
      for (size_t c = 0; c < 3; ++c) {
        sums[label] += sample.images[c * plane + p] / 3;
      }
    }
  }
  const double all = counts[0] + counts[1] + counts[2] + counts[3];
  for (size_t k = 1; k < 4; ++k) {
    EXPECT_GT(counts[k] / all, 0.03) << "class " << k;
    // Deviation one over all pixels; ground and shapes lie far apart, the
    // mean colours of some 500 shapes a class close together.
    EXPECT_GT(sums[k] / counts[k], sums[0] / counts[0] + 1);
    EXPECT_NEAR(sums[k] / counts[k], sums[1] / counts[1], 0.15);
  }
}

TEST(FashionMnistTest, IsReadFromItsUsualPlace) {
  if (!std::filesystem::exists(kFashionMnist)) {
    GTEST_SKIP() << kFashionMnist
                 << " is missing: install dataset-fashion-mnist";
  }
  const auto data = Make({.name = "fashion-mnist"});
  EXPECT_EQ(data->train_size(), 60000);
  EXPECT_EQ(data->test_size(), 10000);
  EXPECT_EQ(data->height(), 28);
  EXPECT_EQ(data->width(), 28);
  // The first labels of the files, as any other reader shows them.
  EXPECT_THAT(Labels(*data, DataSplit::kTrain, {0, 1, 2, 3, 4}),
              ElementsAre(9, 0, 0, 3, 0));
  EXPECT_THAT(Labels(*data, DataSplit::kTest, {0, 1, 2, 3, 4}),
              ElementsAre(9, 2, 1, 1, 6));
  // The whole train split has mean 0 and deviation 1.
  std::vector<int64_t> all(60000);
  std::iota(all.begin(), all.end(), int64_t{0});
  double sum = 0;
  double squares = 0;
  const std::vector<float> images = Images(*data, DataSplit::kTrain, all);
  for (float v : images) {
    sum += v;
    squares += static_cast<double>(v) * v;
  }
  const auto n = static_cast<double>(images.size());
  EXPECT_NEAR(sum / n, 0, 1e-6);
  EXPECT_NEAR(squares / n, 1, 1e-6);
}

}  // namespace
}  // namespace cohort
