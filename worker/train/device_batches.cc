#include "worker/train/device_batches.h"

#include <torch/torch.h>

#include <cstring>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/device/out_of_memory.h"
#include "worker/device/pinned_pool.h"

namespace cohort {
namespace {

// The images may take this fraction of the free memory.
constexpr int64_t kShareOfFree = 8;
constexpr int64_t kPixelValues = 256;

int64_t BytesOf(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(tensor.element_size());
}

// Copies contiguous host memory into a new device tensor, through pinned
// memory.
absl::StatusOr<at::Tensor> Upload(const Compute& compute,
                                  const at::Tensor& host) {
  const at::Tensor from = host.contiguous();
  at::Tensor to = at::empty(from.sizes(), from.options().device(compute.torch));
  const int64_t bytes = BytesOf(from);
  if (bytes == 0) return to;
  COHORT_ASSIGN_OR_RETURN(const std::shared_ptr<PinnedBlock> block,
                          compute.pinned->Take(bytes));
  std::memcpy(block->memory(), from.data_ptr(), static_cast<size_t>(bytes));
  COHORT_RETURN_IF_ERROR(compute.accelerator->Copy(
      Lane::kCompute, to.data_ptr(), block->memory(), bytes));
  COHORT_RETURN_IF_ERROR(compute.pinned->MarkUse(Lane::kCompute, *block));
  return to;
}

size_t IndexOf(DataSplit split) { return split == DataSplit::kTrain ? 0 : 1; }

at::Tensor PlacesTensor(const std::vector<SamplePlace>& places) {
  at::Tensor rows =
      torch::empty({static_cast<int64_t>(places.size()), 4}, torch::kLong);
  auto* to = rows.data_ptr<int64_t>();
  for (const SamplePlace& place : places) {
    *to++ = place.sample;
    *to++ = place.flip ? 1 : 0;
    *to++ = place.top;
    *to++ = place.left;
  }
  return rows;
}

}  // namespace

absl::StatusOr<Batch> MoveBatch(const Compute& compute, const Batch& batch) {
  if (compute.accelerator == nullptr) {
    Batch arranged = batch;
    arranged.images = batch.images.contiguous(compute.activations);
    return arranged;
  }
  try {
    Batch moved{.host_labels = batch.host_labels};
    COHORT_ASSIGN_OR_RETURN(const at::Tensor images,
                            Upload(compute, batch.images));
    moved.images = images.contiguous(compute.activations);
    COHORT_ASSIGN_OR_RETURN(moved.labels, Upload(compute, batch.host_labels));
    return moved;
  } catch (const std::exception& e) {
    if (!IsOutOfMemory(e)) throw;
    return OutOfMemory(compute, TensorText("the batch of images", batch.images),
                       e);
  }
}

absl::StatusOr<int64_t> DeviceBatches::Hold() {
  int64_t bytes = 0;
  std::array<std::optional<StoredImages>, 2> stored;
  for (const DataSplit split : {DataSplit::kTrain, DataSplit::kTest}) {
    stored[IndexOf(split)] = dataset_.Stored(split);
    if (!stored[IndexOf(split)].has_value()) return 0;
    bytes += static_cast<int64_t>(stored[IndexOf(split)]->pixels.size());
  }
  COHORT_ASSIGN_OR_RETURN(const int64_t free_bytes,
                          compute_.accelerator->FreeBytes());
  if (bytes > free_bytes / kShareOfFree) return 0;
  try {
    for (size_t i = 0; i < stored.size(); ++i) {
      const auto size = static_cast<int64_t>(stored[i]->pixels.size());
      // Done once only, so the simplest copy is good enough.
      pixels_[i] = torch::empty({size}, torch::kByte);
      if (size > 0) {
        std::memcpy(pixels_[i].data_ptr(), stored[i]->pixels.data(),
                    stored[i]->pixels.size());
      }
      pixels_[i] = pixels_[i].to(compute_.torch);
    }
    values_ = torch::empty({static_cast<int64_t>(stored[0]->values.size())});
    std::memcpy(values_.data_ptr(), stored[0]->values.data(),
                stored[0]->values.size() * sizeof(float));
    values_ = values_.to(compute_.torch);
  } catch (const std::exception& e) {
    if (!IsOutOfMemory(e)) throw;
    pixels_ = {};
    return 0;
  }
  return bytes;
}

at::Tensor DeviceBatches::ImagesAt(const at::Tensor& pixels,
                                   const at::Tensor& places) const {
  const int64_t channels = dataset_.channels();
  const int64_t height = dataset_.height();
  const int64_t width = dataset_.width();
  const at::TensorOptions counts = places.options();
  const auto column = [&places](int64_t i) {
    return places.narrow(1, i, 1);  // [n, 1]
  };
  at::Tensor y = at::arange(height, counts).unsqueeze(0) + column(2);
  at::Tensor x = at::arange(width, counts).unsqueeze(0) + column(3);
  const at::Tensor inside = (y.ge(0) & y.lt(height)).view({-1, 1, height, 1}) &
                            (x.ge(0) & x.lt(width)).view({-1, 1, 1, width});
  x = at::where(column(1).ne(0), width - 1 - x, x);
  // A pixel outside the image may have any position: it is not shown.
  y = y.clamp(0, height - 1);
  x = x.clamp(0, width - 1);
  const at::Tensor channel =
      at::arange(channels, counts).view({1, channels, 1, 1});
  const at::Tensor plane =
      column(0).view({-1, 1, 1, 1}) * channels + channel;  // [n, c, 1, 1]
  const at::Tensor row = plane * height + y.view({-1, 1, height, 1});
  const at::Tensor at = row * width + x.view({-1, 1, 1, width});
  const at::Tensor shown =
      values_.take(pixels.take(at).to(at::kLong) + channel * kPixelValues);
  return at::where(inside, shown, at::zeros({}, shown.options()));
}

absl::StatusOr<std::optional<Batch>> DeviceBatches::Make(
    const SampleRequest& request) {
  const at::Tensor& pixels = pixels_[IndexOf(request.split)];
  if (!pixels.defined()) return std::optional<Batch>();
  const std::optional<std::vector<SamplePlace>> places =
      dataset_.PlacesOf(request);
  if (!places.has_value()) return std::optional<Batch>();
  const auto n = static_cast<int64_t>(request.indices.size());
  const bool dense = dataset_.task() == DatasetTask::kSegmentation;
  Batch batch;
  batch.host_labels =
      dense
          ? torch::empty({n, dataset_.height(), dataset_.width()}, torch::kLong)
          : torch::empty({n}, torch::kLong);
  dataset_.ReadLabels(
      request, absl::MakeSpan(batch.host_labels.data_ptr<int64_t>(),
                              static_cast<size_t>(batch.host_labels.numel())));
  try {
    COHORT_ASSIGN_OR_RETURN(batch.labels, Upload(compute_, batch.host_labels));
    COHORT_ASSIGN_OR_RETURN(const at::Tensor rows,
                            Upload(compute_, PlacesTensor(*places)));
    batch.images = ImagesAt(pixels, rows).contiguous(compute_.activations);
    return std::make_optional(std::move(batch));
  } catch (const std::exception& e) {
    if (!IsOutOfMemory(e)) throw;
    return OutOfMemory(
        compute_,
        absl::StrCat("the batch of images, Float [", n, ",",
                     dataset_.channels(), ",", dataset_.height(), ",",
                     dataset_.width(), "], ", 4 * n * dataset_.image_elements(),
                     " bytes"),
        e);
  }
}

}  // namespace cohort
