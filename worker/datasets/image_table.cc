#include "worker/datasets/image_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/byte_rope.h"
#include "common/check.h"
#include "common/permutation.h"

namespace cohort {
namespace {

uint64_t DigestOf(const std::vector<uint8_t>& bytes) {
  return Xxh3(absl::MakeConstSpan(
      reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()));
}

std::string DigestOf(const ImageTable& table) {
  uint64_t digest = 0;
  for (const ImageSplit* split : {&table.train, &table.test}) {
    digest = MixSeed(digest, DigestOf(split->pixels), DigestOf(split->labels));
  }
  return absl::StrCat(absl::Hex(digest, absl::kZeroPad16));
}

class ImageDataset final : public Dataset {
 public:
  explicit ImageDataset(ImageTable table)
      : table_(std::move(table)), digest_(DigestOf(table_)) {
    // Exact integer sums: 2^56 pixels would be needed to overflow.
    uint64_t sum = 0;
    uint64_t squares = 0;
    for (uint8_t pixel : table_.train.pixels) {
      sum += pixel;
      squares += static_cast<uint64_t>(pixel) * pixel;
    }
    const double n =
        std::max(1.0, static_cast<double>(table_.train.pixels.size()));
    const double mean = static_cast<double>(sum) / n;
    const double variance = static_cast<double>(squares) / n - mean * mean;
    const double deviation = variance > 0 ? std::sqrt(variance) : 1.0;
    for (size_t v = 0; v < normalised_.size(); ++v) {
      normalised_[v] =
          static_cast<float>((static_cast<double>(v) - mean) / deviation);
    }
  }

  const std::string& name() const override { return table_.name; }
  const std::string& digest() const override { return digest_; }
  int64_t classes() const override { return table_.classes; }
  int64_t channels() const override { return table_.channels; }
  int64_t height() const override { return table_.height; }
  int64_t width() const override { return table_.width; }
  int64_t train_size() const override { return table_.train.size(); }
  int64_t test_size() const override { return table_.test.size(); }

  void ReadImages(DataSplit split, absl::Span<const int64_t> indices,
                  absl::Span<float> out) const override {
    const int64_t pixels = table_.channels * table_.height * table_.width;
    COHORT_CHECK(static_cast<int64_t>(out.size()) ==
                     pixels * static_cast<int64_t>(indices.size()),
                 absl::StrCat("got room for ", out.size(), " pixels"));
    float* to = out.data();
    for (int64_t index : indices) {
      const uint8_t* from =
          Of(split).pixels.data() + Checked(split, index) * pixels;
      for (int64_t i = 0; i < pixels; ++i) *to++ = normalised_[from[i]];
    }
  }

  void ReadLabels(DataSplit split, absl::Span<const int64_t> indices,
                  absl::Span<int64_t> out) const override {
    COHORT_CHECK(out.size() == indices.size(),
                 absl::StrCat("got room for ", out.size(), " labels"));
    for (size_t i = 0; i < indices.size(); ++i) {
      out[i] =
          Of(split).labels[static_cast<size_t>(Checked(split, indices[i]))];
    }
  }

 private:
  const ImageSplit& Of(DataSplit split) const {
    return split == DataSplit::kTrain ? table_.train : table_.test;
  }
  int64_t Checked(DataSplit split, int64_t index) const {
    COHORT_CHECK(index >= 0 && index < Of(split).size(),
                 absl::StrCat("sample ", index, " of ", Of(split).size()));
    return index;
  }

  const ImageTable table_;
  const std::string digest_;
  // By pixel value: 256 numbers instead of arithmetic a pixel.
  std::array<float, 256> normalised_ = {};
};

}  // namespace

std::unique_ptr<Dataset> MakeImageDataset(ImageTable table) {
  return std::make_unique<ImageDataset>(std::move(table));
}

}  // namespace cohort
