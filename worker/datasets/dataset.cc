#include "worker/datasets/dataset.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/datasets/cifar.h"
#include "worker/datasets/idx.h"
#include "worker/datasets/image_folder.h"
#include "worker/datasets/image_table.h"
#include "worker/datasets/synthetic.h"
#include "worker/datasets/voc.h"

namespace cohort {
namespace {

constexpr char kFashionMnistDir[] = "/usr/share/datasets/fashion-mnist";

absl::Status CheckOptions(const DatasetOptions& options) {
  if (options.loader_threads < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "loader threads: got ", options.loader_threads, ", want 1 or more"));
  }
  if (options.classes.has_value() && options.name != "voc") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--classes: got ", *options.classes, ", want none: ", options.name,
        " defines its number of classes itself"));
  }
  return absl::OkStatus();
}

SyntheticSize SizeFrom(const DatasetOptions& options,
                       const SyntheticSize& usual) {
  return {.train = options.synthetic_train.value_or(usual.train),
          .test = options.synthetic_test.value_or(usual.test)};
}

absl::StatusOr<ImageTable> ReadMnist(const DatasetOptions& options) {
  if (!options.data_dir.empty()) return ReadIdx(options.name, options.data_dir);
  if (options.name == "fashion-mnist") {
    return ReadIdx(options.name, kFashionMnistDir);
  }
  return absl::InvalidArgumentError(
      "mnist has no default folder; pass the folder of its IDX files as "
      "--data_dir");
}

absl::StatusOr<ImageTable> ReadTable(const DatasetOptions& options) {
  const std::string& name = options.name;
  if (name == "synthetic") {
    return SyntheticBars(SizeFrom(options, {.train = 4096, .test = 512}));
  }
  if (name == "synthetic-segmentation") {
    return SyntheticShapes(SizeFrom(options, {.train = 512, .test = 128}));
  }
  if (name == "fashion-mnist" || name == "mnist") return ReadMnist(options);
  if (name == "cifar10" || name == "cifar100") {
    return ReadCifar(name, options.data_dir);
  }
  if (name == "voc") return ReadVoc(options);
  if (name == "imagefolder") return ReadImageFolder(options);
  return absl::InvalidArgumentError(absl::StrCat(
      "--dataset: got ", name,
      ", want fashion-mnist, mnist, cifar10, cifar100, voc, imagefolder, "
      "synthetic or synthetic-segmentation"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> MakeDataset(
    const DatasetOptions& options) {
  COHORT_RETURN_IF_ERROR(CheckOptions(options));
  COHORT_ASSIGN_OR_RETURN(ImageTable table, ReadTable(options));
  if (options.image_size.has_value()) Resize(*options.image_size, table);
  return MakeImageDataset(
      std::move(table),
      options.augment.value_or(DefaultAugmentations(options.name)));
}

}  // namespace cohort
