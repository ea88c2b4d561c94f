#include "worker/train/batch_reader.h"

#include <torch/torch.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/mutex.h"

namespace cohort {
namespace {

Batch Allocate(const Dataset& dataset, size_t samples) {
  const auto n = static_cast<int64_t>(samples);
  const int64_t height = dataset.height();
  const int64_t width = dataset.width();
  Batch batch{.images = torch::empty({n, dataset.channels(), height, width}),
              .labels = dataset.task() == DatasetTask::kSegmentation
                            ? torch::empty({n, height, width}, torch::kLong)
                            : torch::empty({n}, torch::kLong)};
  batch.host_labels = batch.labels;
  return batch;
}

// Memory of a batch's samples, without the tensors: copying a tensor counts
// references, which threads that only write do not need.
struct Memory {
  float* images = nullptr;
  int64_t* labels = nullptr;
};

Memory MemoryOf(const Batch& batch) {
  return {.images = batch.images.data_ptr<float>(),
          .labels = batch.labels.data_ptr<int64_t>()};
}

// Reads the samples begin to end - 1 of a request into their places.
void ReadPart(const Dataset& dataset, SampleRequest request,
              const IndexRange& part, const Memory& to) {
  const auto samples = static_cast<size_t>(part.size());
  const int64_t pixels = dataset.image_elements();
  const int64_t labels = dataset.labels_per_sample();
  request.indices =
      request.indices.subspan(static_cast<size_t>(part.begin), samples);
  dataset.Read(request,
               absl::MakeSpan(to.images + part.begin * pixels,
                              samples * static_cast<size_t>(pixels)),
               absl::MakeSpan(to.labels + part.begin * labels,
                              samples * static_cast<size_t>(labels)));
}

}  // namespace

Batch Batch::Part(const SampleStride& stride) const {
  const auto part = [&stride](const at::Tensor& of) {
    const int64_t begin = std::min(stride.begin, of.size(0));
    return of.slice(0, begin, of.size(0), stride.stride).contiguous();
  };
  return {.images = part(images),
          .labels = part(labels),
          .host_labels = part(host_labels)};
}

Batch ReadBatch(const Dataset& dataset, const SampleRequest& request) {
  Batch batch = Allocate(dataset, request.indices.size());
  ReadPart(dataset, request,
           {.end = static_cast<int64_t>(request.indices.size())},
           MemoryOf(batch));
  return batch;
}

// One batch that is being read.
struct BatchReader::Reading {
  // Does not change after the first job is submitted.
  DataSplit split = DataSplit::kTrain;
  std::vector<int64_t> indices;
  std::optional<AugmentationKey> augmentation;
  Batch batch;

  Mutex mu;
  CondVar changed;
  int64_t parts_left ABSL_GUARDED_BY(mu) = 0;
  bool dropped ABSL_GUARDED_BY(mu) = false;

  SampleRequest request() const {
    return {.split = split, .indices = indices, .augmentation = augmentation};
  }
  bool Answers(const SampleRequest& wanted) const {
    return split == wanted.split && augmentation == wanted.augmentation &&
           absl::MakeConstSpan(indices) == wanted.indices;
  }
  bool IsDropped() ABSL_LOCKS_EXCLUDED(mu) {
    MutexLock lock(mu);
    return dropped;
  }
  void Drop() ABSL_LOCKS_EXCLUDED(mu) {
    MutexLock lock(mu);
    dropped = true;
  }
  void EndPart() ABSL_LOCKS_EXCLUDED(mu) {
    MutexLock lock(mu);
    if (--parts_left == 0) changed.NotifyAll();
  }
  void Await() ABSL_LOCKS_EXCLUDED(mu) {
    MutexLock lock(mu);
    while (parts_left > 0) changed.Wait(mu);
  }
};

BatchReader::BatchReader(const Dataset& dataset, int32_t threads)
    : dataset_(dataset), threads_(threads) {
  if (threads_ > 0) {
    pool_ = std::make_unique<ThreadPool>(
        ThreadPoolOptions{.name = "loader", .threads = threads_});
  }
}

BatchReader::~BatchReader() {
  if (prepared_ != nullptr) prepared_->Drop();
}

std::shared_ptr<BatchReader::Reading> BatchReader::Begin(
    const SampleRequest& request) {
  auto reading = std::make_shared<Reading>();
  reading->split = request.split;
  reading->indices.assign(request.indices.begin(), request.indices.end());
  reading->augmentation = request.augmentation;
  reading->batch = Allocate(dataset_, request.indices.size());
  const auto samples = static_cast<int64_t>(request.indices.size());
  const int64_t parts = std::min<int64_t>(threads_, samples);
  {
    MutexLock lock(reading->mu);
    reading->parts_left = parts;
  }
  const Memory memory = MemoryOf(reading->batch);
  for (int64_t i = 0; i < parts; ++i) {
    const IndexRange part{.begin = samples * i / parts,
                          .end = samples * (i + 1) / parts};
    // Jobs of a dropped batch end quickly, so the queue stays short: at most
    // two batches are being read.
    const absl::Status accepted = pool_->Submit([this, reading, part, memory] {
      if (!reading->IsDropped()) {
        ReadPart(dataset_, reading->request(), part, memory);
      }
      reading->EndPart();
    });
    if (!accepted.ok()) {
      ReadPart(dataset_, reading->request(), part, memory);
      reading->EndPart();
    }
  }
  return reading;
}

Batch BatchReader::Read(const SampleRequest& request) {
  if (pool_ == nullptr) return ReadBatch(dataset_, request);
  std::shared_ptr<Reading> reading = std::move(prepared_);
  prepared_ = nullptr;
  if (reading == nullptr || !reading->Answers(request)) {
    if (reading != nullptr) reading->Drop();
    reading = Begin(request);
  }
  reading->Await();
  return reading->batch;
}

void BatchReader::Prepare(const SampleRequest& request) {
  if (pool_ == nullptr) return;
  if (prepared_ != nullptr) {
    if (prepared_->Answers(request)) return;
    prepared_->Drop();
  }
  prepared_ = Begin(request);
}

std::optional<IndexRange> RangeForecast::After(int64_t data_epoch,
                                               const IndexRange& range,
                                               int64_t samples) {
  const bool known = epoch_ == data_epoch;
  const int64_t stride = range.begin - begin_;
  epoch_ = data_epoch;
  begin_ = range.begin;
  if (!known || stride <= 0) return std::nullopt;
  const IndexRange next{.begin = range.begin + stride,
                        .end = std::min(range.end + stride, samples)};
  if (next.empty()) return std::nullopt;
  return next;
}

}  // namespace cohort
