#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "common/assignment.h"
#include "common/thread_pool.h"
#include "worker/datasets/dataset.h"

namespace cohort {

// The samples begin, begin + stride, and so on.
struct SampleStride {
  int64_t begin = 0;
  int64_t stride = 1;
};

struct Batch {
  // [n, channels, height, width], float32.
  at::Tensor images;
  // Class numbers or kIgnoredLabel: [n] or [n, height, width].
  at::Tensor labels;
  // The labels on the CPU: the same tensor, or the one that was copied.
  at::Tensor host_labels;

  // None if `stride` begins behind the last. All of them: over the same memory.
  Batch Part(const SampleStride& stride) const;
};

// Reads in the calling thread.
Batch ReadBatch(const Dataset& dataset, const SampleRequest& request);

// Reads batches with several threads, and one batch ahead of need. The content
// of a batch depends on the request alone, not on the number of threads or on
// reading ahead.
//
// Thread safety: one thread calls; others only write to batches being read.
class BatchReader {
 public:
  // With 0 threads every batch is read in the calling thread when requested.
  // `dataset` must outlive the reader.
  BatchReader(const Dataset& dataset, int32_t threads);
  ~BatchReader();

  // Blocks until the whole batch is read.
  Batch Read(const SampleRequest& request);
  // Starts reading the batch that will probably be requested next. A wrong
  // guess is dropped. At most one batch is read ahead.
  void Prepare(const SampleRequest& request);

 private:
  struct Reading;

  std::shared_ptr<Reading> Begin(const SampleRequest& request);

  // Fixed after construction.
  const Dataset& dataset_;
  const int32_t threads_;

  // Read ahead and not requested yet. May be null.
  std::shared_ptr<Reading> prepared_;
  // Last, so that its jobs end before the members that they use are destroyed.
  // Null with 0 threads.
  std::unique_ptr<ThreadPool> pool_;
};

// Guesses which range of training samples a worker gets next. In a synchronous
// step a rank's ranges are equally far apart within an epoch; elsewhere they
// mostly are. A wrong guess only costs time.
class RangeForecast {
 public:
  // Records a range that was handed out, in an epoch of `samples`, and returns
  // the guess: the same length, and as far from this range as this range is
  // from the one before, cut at the epoch's end. Absent if this is the first
  // range of the epoch, or if none is left after it.
  std::optional<IndexRange> After(int64_t data_epoch, const IndexRange& range,
                                  int64_t samples);

 private:
  std::optional<int64_t> epoch_;
  int64_t begin_ = 0;
};

}  // namespace cohort
