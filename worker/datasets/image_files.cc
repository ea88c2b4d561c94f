#include "worker/datasets/image_files.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/log/log.h"
#include "common/status_macros.h"
#include "worker/datasets/files.h"
#include "worker/datasets/parallel_for.h"
#include "worker/datasets/raster.h"
#include "worker/datasets/resize.h"

namespace cohort {
namespace {

constexpr int64_t kImageChannels = 3;
// Samples decoded at a time per thread. They are held twice until they are in
// the table.
constexpr int64_t kBlockPerThread = 16;
// Further bad samples are only counted.
constexpr int64_t kWarningsMax = 10;

// The result of decoding one sample.
struct Decoded {
  absl::Status status;
  // Whether BadSamples::kSkip applies to the failure.
  bool skippable = false;
  Raster image;
  Raster mask;
};

// Puts the file's name before the message.
absl::Status InFile(const std::string& path, const absl::Status& status) {
  return {status.code(), absl::StrCat(path, ": ", status.message())};
}

// Maps class numbers to the representation of ImageSplit::masks.
absl::Status MapClasses(const std::string& path, const DatasetOptions& options,
                        Raster& mask) {
  const int64_t classes = options.classes.value_or(kMaskClassesMax);
  for (size_t i = 0; i < mask.pixels.size(); ++i) {
    uint8_t& label = mask.pixels[i];
    if (label == options.ignore_index) {
      label = kIgnoredInMask;
    } else if (label >= classes) {
      const auto at = static_cast<int64_t>(i);
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": row ", at / mask.size.width, ", column ",
          at % mask.size.width, ": got class ", static_cast<int>(label),
          ", want 0 to ", classes - 1,
          options.ignore_index < 0
              ? std::string()
              : absl::StrCat(" or the ignored ", options.ignore_index)));
    }
  }
  return absl::OkStatus();
}

absl::Status DecodeMaskOf(const ImageFile& file, const DatasetOptions& options,
                          Decoded& sample) {
  COHORT_ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes,
                          ReadBytes(file.mask));
  absl::StatusOr<Raster> mask = DecodeMask(bytes);
  if (!mask.ok()) {
    // A mask of the wrong kind is not skipped: it is a mistake in how all masks
    // were made.
    sample.skippable = absl::IsDataLoss(mask.status());
    return InFile(file.mask, mask.status());
  }
  sample.mask = *std::move(mask);
  if (sample.mask.size != sample.image.size) {
    return absl::InvalidArgumentError(absl::StrCat(
        file.mask, ": got ", ToText(sample.mask.size), " pixels, want ",
        ToText(sample.image.size), " like its image ", file.image));
  }
  return MapClasses(file.mask, options, sample.mask);
}

absl::Status DecodeSample(const ImageFile& file, const DatasetOptions& options,
                          Decoded& sample) {
  COHORT_ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes,
                          ReadBytes(file.image));
  absl::StatusOr<Raster> image = DecodeImage(bytes);
  if (!image.ok()) {
    sample.skippable = true;
    return InFile(file.image, image.status());
  }
  sample.image = *std::move(image);
  if (!file.mask.empty()) {
    COHORT_RETURN_IF_ERROR(DecodeMaskOf(file, options, sample));
  }
  if (!options.image_size.has_value()) return absl::OkStatus();
  const ImageSize from = std::exchange(sample.image.size, *options.image_size);
  if (from == *options.image_size) return absl::OkStatus();
  sample.image.pixels = ResizeImage(sample.image.pixels, kImageChannels, from,
                                    *options.image_size);
  if (!file.mask.empty()) {
    sample.mask.pixels =
        ResizeMask(sample.mask.pixels, from, *options.image_size);
  }
  return absl::OkStatus();
}

// Reserves memory for this many samples.
absl::Status Reserve(const ImageTable& table, size_t samples,
                     ImageSplit& split) {
  const auto pixels = static_cast<size_t>(table.height * table.width);
  const size_t image = pixels * kImageChannels;
  const bool masks = table.task == DatasetTask::kSegmentation;
  const auto machine = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) *
                       static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t wanted = samples * (image + (masks ? pixels : 0)) +
                        table.train.pixels.size() + table.train.masks.size();
  if (wanted > machine) {
    return absl::ResourceExhaustedError(
        absl::StrCat(table.name, ": ", samples, " images of ", table.height,
                     "x", table.width, " need more than ", wanted >> 20,
                     " MiB of memory, but this machine has ", machine >> 20,
                     " MiB; use a smaller --image_size"));
  }
  split.pixels.reserve(samples * image);
  if (masks) split.masks.reserve(samples * pixels);
  return absl::OkStatus();
}

// Moves one good sample to the end of the split.
absl::Status Add(const ImageFile& file, const Decoded& sample, size_t samples,
                 ImageTable& table, ImageSplit& split) {
  const ImageSize& size = sample.image.size;
  if (table.height == 0) {
    table.height = size.height;
    table.width = size.width;
  }
  const ImageSize wanted{.height = table.height, .width = table.width};
  if (size != wanted) {
    return absl::InvalidArgumentError(absl::StrCat(
        file.image, ": got ", ToText(size), " pixels, want ", ToText(wanted),
        " like the images before it; --image_size resizes all images to one "
        "size"));
  }
  if (split.samples == 0) {
    COHORT_RETURN_IF_ERROR(Reserve(table, samples, split));
  }
  const auto append = [](const std::vector<uint8_t>& from,
                         std::vector<uint8_t>& to) {
    to.insert(to.end(), from.begin(), from.end());
  };
  append(sample.image.pixels, split.pixels);
  if (table.task == DatasetTask::kSegmentation) {
    append(sample.mask.pixels, split.masks);
  } else {
    split.labels.push_back(file.label);
  }
  ++split.samples;
  return absl::OkStatus();
}

void WarnOfSkipped(const absl::Status& status, int64_t skipped) {
  if (skipped > kWarningsMax) return;
  Log(LogLevel::kWarning, absl::StrCat("sample skipped: ", status.message()));
}

absl::Status CheckSkipped(const ImageTable& table, const ImageSplit& split,
                          int64_t skipped, size_t samples) {
  if (split.samples == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        table.name, ": none of ", samples, " samples could be decoded"));
  }
  if (skipped > 0) {
    Log(LogLevel::kWarning,
        absl::StrCat(
            table.name, ": ", skipped, " of ", samples,
            " samples were skipped because they could not be decoded"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status LoadFiles(const std::vector<ImageFile>& files,
                       const DatasetOptions& options, ImageTable& table,
                       ImageSplit& split) {
  if (files.empty()) return absl::OkStatus();
  table.channels = kImageChannels;
  int64_t skipped = 0;
  const auto block = static_cast<size_t>(kBlockPerThread *
                                         std::max(1, options.loader_threads));
  for (size_t begin = 0; begin < files.size(); begin += block) {
    std::vector<Decoded> samples(std::min(block, files.size() - begin));
    ParallelFor(options.loader_threads, static_cast<int64_t>(samples.size()),
                [&](int64_t i) {
                  Decoded& sample = samples[static_cast<size_t>(i)];
                  sample.status = DecodeSample(
                      files[begin + static_cast<size_t>(i)], options, sample);
                });
    for (size_t i = 0; i < samples.size(); ++i) {
      const absl::Status& status = samples[i].status;
      if (status.ok()) {
        COHORT_RETURN_IF_ERROR(
            Add(files[begin + i], samples[i], files.size(), table, split));
      } else if (samples[i].skippable &&
                 options.bad_samples == BadSamples::kSkip) {
        WarnOfSkipped(status, ++skipped);
      } else if (samples[i].skippable) {
        return absl::Status(
            status.code(),
            absl::StrCat(status.message(),
                         "; --bad_samples=skip skips such files"));
      } else {
        return status;
      }
    }
  }
  return CheckSkipped(table, split, skipped, files.size());
}

}  // namespace cohort
