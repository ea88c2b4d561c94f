#include "worker/datasets/image_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/byte_rope.h"
#include "common/check.h"
#include "common/permutation.h"
#include "worker/datasets/augmentation.h"
#include "worker/datasets/resize.h"

namespace cohort {
namespace {

uint64_t DigestOf(absl::Span<const uint8_t> bytes) {
  return Xxh3(absl::MakeConstSpan(
      reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()));
}

// As little-endian bytes, so that the digest is the same everywhere.
std::vector<uint8_t> BytesOf(const std::vector<uint16_t>& labels) {
  std::vector<uint8_t> bytes;
  bytes.reserve(2 * labels.size());
  for (const uint16_t label : labels) {
    bytes.push_back(static_cast<uint8_t>(label & 0xff));
    bytes.push_back(static_cast<uint8_t>(label >> 8));
  }
  return bytes;
}

std::string DigestOf(const ImageTable& table) {
  uint64_t digest = MixSeed(static_cast<uint64_t>(table.channels),
                            static_cast<uint64_t>(table.height),
                            static_cast<uint64_t>(table.width));
  digest = MixSeed(digest, static_cast<uint64_t>(table.classes));
  for (const ImageSplit* split : {&table.train, &table.test}) {
    const uint64_t labels =
        MixSeed(DigestOf(BytesOf(split->labels)), DigestOf(split->masks));
    digest = MixSeed(digest, DigestOf(split->pixels), labels);
  }
  return absl::StrCat(absl::Hex(digest, absl::kZeroPad16));
}

std::string NameOf(const ImageTable& table,
                   const Augmentations& augmentations) {
  if (!augmentations.any()) return table.name;
  return absl::StrCat(table.name, " (", ToText(augmentations), ")");
}

int64_t PixelsOf(const ImageTable& table) { return table.height * table.width; }

// `classes` if all pixels are ignored.
int64_t CommonestClass(absl::Span<const uint8_t> mask, int64_t classes) {
  std::vector<int64_t> pixels(static_cast<size_t>(classes));
  for (const uint8_t label : mask) {
    if (label != kIgnoredInMask) ++pixels[label];
  }
  const auto most = std::max_element(pixels.begin(), pixels.end());
  return *most == 0 ? classes : most - pixels.begin();
}

// Normalises the values of one channel to mean 0 and deviation 1.
struct Normaliser {
  double mean = 0;
  double deviation = 1;
  // By pixel value: a table of 256 numbers replaces arithmetic per pixel.
  std::array<float, 256> of_value = {};

  float Of(double value) const {
    return static_cast<float>((value - mean) / deviation);
  }
};

Normaliser NormaliserOf(const ImageTable& table, int64_t channel) {
  // Exact integer sums: 2^48 pixels would be needed to overflow.
  uint64_t sum = 0;
  uint64_t squares = 0;
  const int64_t plane = PixelsOf(table);
  for (int64_t i = 0; i < table.train.samples; ++i) {
    const uint8_t* pixels =
        table.train.pixels.data() + (i * table.channels + channel) * plane;
    for (int64_t p = 0; p < plane; ++p) {
      sum += pixels[p];
      squares += static_cast<uint64_t>(pixels[p]) * pixels[p];
    }
  }
  const double n =
      std::max(1.0, static_cast<double>(table.train.samples * plane));
  Normaliser normaliser{.mean = static_cast<double>(sum) / n};
  const double variance =
      static_cast<double>(squares) / n - normaliser.mean * normaliser.mean;
  if (variance > 0) normaliser.deviation = std::sqrt(variance);
  for (size_t v = 0; v < normaliser.of_value.size(); ++v) {
    normaliser.of_value[v] = normaliser.Of(static_cast<double>(v));
  }
  return normaliser;
}

class ImageDataset final : public Dataset {
 public:
  ImageDataset(ImageTable table, const Augmentations& augmentations)
      : table_(std::move(table)),
        augmentations_(augmentations),
        name_(NameOf(table_, augmentations)),
        digest_(DigestOf(table_)) {
    for (int64_t c = 0; c < table_.channels; ++c) {
      normalisers_.push_back(NormaliserOf(table_, c));
      const std::array<float, 256>& values = normalisers_.back().of_value;
      values_.insert(values_.end(), values.begin(), values.end());
    }
  }

  const std::string& name() const override { return name_; }
  const std::string& digest() const override { return digest_; }
  DatasetTask task() const override { return table_.task; }
  int64_t classes() const override { return table_.classes; }
  int64_t channels() const override { return table_.channels; }
  int64_t height() const override { return table_.height; }
  int64_t width() const override { return table_.width; }
  int64_t train_size() const override { return table_.train.samples; }
  int64_t test_size() const override { return table_.test.samples; }

  std::vector<int64_t> TrainClasses() const override {
    if (table_.task == DatasetTask::kClassification) {
      return {table_.train.labels.begin(), table_.train.labels.end()};
    }
    std::vector<int64_t> classes;
    const auto plane = static_cast<size_t>(PixelsOf(table_));
    for (int64_t i = 0; i < table_.train.samples; ++i) {
      classes.push_back(
          CommonestClass(absl::MakeConstSpan(table_.train.masks)
                             .subspan(static_cast<size_t>(i) * plane, plane),
                         table_.classes));
    }
    return classes;
  }

  void Read(const SampleRequest& request, absl::Span<float> images,
            absl::Span<int64_t> labels) const override {
    const size_t n = request.indices.size();
    const auto pixels = static_cast<size_t>(image_elements());
    const auto label_count = static_cast<size_t>(labels_per_sample());
    COHORT_CHECK(images.size() == n * pixels,
                 absl::StrCat("got room for ", images.size(), " pixels"));
    COHORT_CHECK(labels.size() == n * label_count,
                 absl::StrCat("got room for ", labels.size(), " labels"));
    for (size_t i = 0; i < n; ++i) {
      ReadSample(request, request.indices[i], images.data() + i * pixels,
                 labels.data() + i * label_count);
    }
  }

  std::optional<StoredImages> Stored(DataSplit split) const override {
    return StoredImages{.pixels = SplitOf(split).pixels,
                        .samples = SplitOf(split).samples,
                        .values = values_};
  }

  std::optional<std::vector<SamplePlace>> PlacesOf(
      const SampleRequest& request) const override {
    if (Changes(request) && (augmentations_.scale || augmentations_.jitter)) {
      return std::nullopt;
    }
    std::vector<SamplePlace> places;
    for (const int64_t index : request.indices) {
      const SampleChange change = ChangeOf(request, index);
      places.push_back({.sample = index,
                        .flip = change.flip,
                        .top = change.top,
                        .left = change.left});
    }
    return places;
  }

  void ReadLabels(const SampleRequest& request,
                  absl::Span<int64_t> labels) const override {
    const auto count = static_cast<size_t>(labels_per_sample());
    COHORT_CHECK(labels.size() == request.indices.size() * count,
                 absl::StrCat("got room for ", labels.size(), " labels"));
    for (size_t i = 0; i < request.indices.size(); ++i) {
      WriteLabels(request, request.indices[i],
                  ChangeOf(request, request.indices[i]),
                  labels.data() + i * count);
    }
  }

 private:
  const ImageSplit& SplitOf(DataSplit split) const {
    return split == DataSplit::kTrain ? table_.train : table_.test;
  }

  bool Changes(const SampleRequest& request) const {
    return request.augmentation.has_value() && augmentations_.any();
  }

  SampleChange ChangeOf(const SampleRequest& request, int64_t index) const {
    const ImageSize size{.height = table_.height, .width = table_.width};
    if (!Changes(request)) return {.height = size.height, .width = size.width};
    return DrawChange(augmentations_, size,
                      {.run_seed = request.augmentation->run_seed,
                       .data_epoch = request.augmentation->data_epoch,
                       .sample = index});
  }

  void ReadSample(const SampleRequest& request, int64_t index, float* image,
                  int64_t* labels) const {
    const ImageSplit& split = SplitOf(request.split);
    COHORT_CHECK(index >= 0 && index < split.samples,
                 absl::StrCat("sample ", index, " of ", split.samples));
    const SampleChange change = ChangeOf(request, index);
    const uint8_t* pixels = split.pixels.data() + index * image_elements();
    if (Changes(request)) {
      WriteChanged(change, pixels, image);
    } else {
      WriteAsItIs(pixels, image);
    }
    WriteLabels(request, index, change, labels);
  }

  void WriteLabels(const SampleRequest& request, int64_t index,
                   const SampleChange& change, int64_t* labels) const {
    const ImageSplit& split = SplitOf(request.split);
    if (table_.task == DatasetTask::kClassification) {
      *labels = split.labels[static_cast<size_t>(index)];
      return;
    }
    ChangeMask(change,
               {.labels = split.masks.data() + index * PixelsOf(table_),
                .size = {.height = table_.height, .width = table_.width},
                .ignored_in_mask = kIgnoredInMask,
                .ignored = kIgnoredLabel},
               labels);
  }

  void WriteAsItIs(const uint8_t* pixels, float* image) const {
    const int64_t plane = PixelsOf(table_);
    for (const Normaliser& normaliser : normalisers_) {
      for (int64_t i = 0; i < plane; ++i) {
        *image++ = normaliser.of_value[*pixels++];
      }
    }
  }

  void WriteChanged(const SampleChange& change, const uint8_t* pixels,
                    float* image) const {
    const ImageSize size{.height = table_.height, .width = table_.width};
    std::fill_n(image, image_elements(), 0.0F);
    ChangeImage(change,
                {.pixels = pixels, .channels = table_.channels, .size = size},
                image);
    const OutputWindow window = WindowOf(change, size);
    for (const Normaliser& normaliser : normalisers_) {
      for (int64_t y = window.top; y < window.bottom; ++y) {
        for (int64_t x = window.left; x < window.right; ++x) {
          float& value = image[y * size.width + x];
          value = normaliser.Of(value);
        }
      }
      image += PixelsOf(table_);
    }
  }

  // Fixed after construction.
  const ImageTable table_;
  const Augmentations augmentations_;
  const std::string name_;
  const std::string digest_;
  // One entry a channel.
  std::vector<Normaliser> normalisers_;
  // The tables of all normalisers, one after the other.
  std::vector<float> values_;
};

void ResizeSplit(const ImageTable& table, const ImageSize& to,
                 ImageSplit& split) {
  const ImageSize from{.height = table.height, .width = table.width};
  const auto pixels = static_cast<size_t>(table.channels * PixelsOf(table));
  const auto labels = static_cast<size_t>(PixelsOf(table));
  std::vector<uint8_t> images;
  std::vector<uint8_t> masks;
  for (int64_t i = 0; i < split.samples; ++i) {
    const auto at = static_cast<size_t>(i);
    const std::vector<uint8_t> image = ResizeImage(
        absl::MakeConstSpan(split.pixels).subspan(at * pixels, pixels),
        table.channels, from, to);
    images.insert(images.end(), image.begin(), image.end());
    if (table.task != DatasetTask::kSegmentation) continue;
    const std::vector<uint8_t> mask = ResizeMask(
        absl::MakeConstSpan(split.masks).subspan(at * labels, labels), from,
        to);
    masks.insert(masks.end(), mask.begin(), mask.end());
  }
  split.pixels = std::move(images);
  split.masks = std::move(masks);
}

}  // namespace

void Resize(const ImageSize& size, ImageTable& table) {
  if (size.height == table.height && size.width == table.width) return;
  ResizeSplit(table, size, table.train);
  ResizeSplit(table, size, table.test);
  table.height = size.height;
  table.width = size.width;
}

std::unique_ptr<Dataset> MakeImageDataset(ImageTable table,
                                          const Augmentations& augmentations) {
  return std::make_unique<ImageDataset>(std::move(table), augmentations);
}

}  // namespace cohort
