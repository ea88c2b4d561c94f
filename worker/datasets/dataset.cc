#include "worker/datasets/dataset.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/permutation.h"
#include "common/status_macros.h"
#include "worker/datasets/idx.h"
#include "worker/datasets/image_table.h"

namespace cohort {
namespace {

constexpr char kFashionMnistDir[] = "/usr/share/datasets/fashion-mnist";
constexpr int64_t kSyntheticTrain = 4096;
constexpr int64_t kSyntheticTest = 512;

// Ten classes of 28x28 images: a bright bar whose angle tells the class, at a
// random place, in noise. Learnable, but not at a glance. The same on every
// machine.
ImageSplit SyntheticSplit(uint64_t seed, int64_t samples,
                          const ImageTable& shape) {
  ImageSplit split;
  split.pixels.reserve(
      static_cast<size_t>(samples * shape.height * shape.width));
  for (int64_t i = 0; i < samples; ++i) {
    SplitMix64 random(MixSeed(seed, static_cast<uint64_t>(i)));
    const auto label = random.Below(static_cast<uint64_t>(shape.classes));
    const double angle = static_cast<double>(label) * 3.14159265358979 /
                         static_cast<double>(shape.classes);
    const double nx = -std::sin(angle);
    const double ny = std::cos(angle);
    const double cx =
        static_cast<double>(shape.width) * (0.35 + 0.3 * random.Uniform());
    const double cy =
        static_cast<double>(shape.height) * (0.35 + 0.3 * random.Uniform());
    for (int64_t y = 0; y < shape.height; ++y) {
      for (int64_t x = 0; x < shape.width; ++x) {
        const double distance = std::abs((static_cast<double>(x) - cx) * nx +
                                         (static_cast<double>(y) - cy) * ny);
        const double bar = distance < 2.5 ? 120.0 : 0.0;
        split.pixels.push_back(static_cast<uint8_t>(
            std::min(255.0, bar + 120.0 * random.Uniform())));
      }
    }
    split.labels.push_back(static_cast<uint8_t>(label));
  }
  return split;
}

ImageTable Synthetic(int64_t train, int64_t test) {
  ImageTable table{.name = "synthetic",
                   .classes = 10,
                   .channels = 1,
                   .height = 28,
                   .width = 28};
  table.train = SyntheticSplit(1, train, table);
  table.test = SyntheticSplit(2, test, table);
  return table;
}

absl::Status CheckLimit(const char* what, const std::optional<int64_t>& limit,
                        int64_t least) {
  if (!limit.has_value() || *limit >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      what, ": got ", *limit, " samples, want ", least, " or more"));
}

void Shorten(ImageSplit& split, const std::optional<int64_t>& limit) {
  if (!limit.has_value() || *limit >= split.size()) return;
  const size_t pixels = split.pixels.size() / split.labels.size();
  split.labels.resize(static_cast<size_t>(*limit));
  split.pixels.resize(static_cast<size_t>(*limit) * pixels);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> MakeDataset(
    const DatasetOptions& options) {
  COHORT_RETURN_IF_ERROR(CheckLimit("train limit", options.train_limit, 1));
  COHORT_RETURN_IF_ERROR(CheckLimit("test limit", options.test_limit, 0));
  ImageTable table;
  if (options.name == "synthetic") {
    table = Synthetic(options.train_limit.value_or(kSyntheticTrain),
                      options.test_limit.value_or(kSyntheticTest));
  } else if (options.name == "fashion-mnist") {
    COHORT_ASSIGN_OR_RETURN(
        table,
        ReadIdx(options.name, options.data_dir.empty() ? kFashionMnistDir
                                                       : options.data_dir));
  } else if (options.name == "mnist") {
    if (options.data_dir.empty()) {
      return absl::InvalidArgumentError(
          "mnist has no usual place: give the folder of its IDX files with "
          "--data_dir");
    }
    COHORT_ASSIGN_OR_RETURN(table, ReadIdx(options.name, options.data_dir));
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("--dataset: got ", options.name,
                     ", want fashion-mnist, mnist or synthetic"));
  }
  Shorten(table.train, options.train_limit);
  Shorten(table.test, options.test_limit);
  return MakeImageDataset(std::move(table));
}

}  // namespace cohort
