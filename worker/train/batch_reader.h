#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "common/assignment.h"
#include "common/thread_pool.h"
#include "worker/datasets/dataset.h"

namespace cohort {

struct Batch {
  // [n, channels, height, width], float32.
  at::Tensor images;
  // Class numbers or kIgnoredLabel: [n] or [n, height, width].
  at::Tensor labels;
  // The labels on the CPU: the same tensor, or what was copied from there.
  at::Tensor host_labels;

  // The samples begin to end - 1, over the same memory.
  Batch Part(int64_t begin, int64_t end) const;
};

// Reads in the calling thread.
Batch ReadBatch(const Dataset& dataset, const SampleRequest& request);

// Reads batches with several threads, and one batch ahead of need. What a
// batch holds depends on the request alone: neither the number of threads nor
// what was read ahead can change it.
//
// Thread safety: one thread calls; others only write to batches under way.
class BatchReader {
 public:
  // 0 threads: everything is read in the calling thread, when it is asked
  // for. `dataset` must outlive the reader.
  BatchReader(const Dataset& dataset, int32_t threads);
  ~BatchReader();

  // Blocks until the batch is whole.
  Batch Read(const SampleRequest& request);
  // Begins to read what will probably be asked for next; a guess that is not
  // asked for is dropped. At most one is held.
  void Prepare(const SampleRequest& request);

 private:
  struct Reading;

  std::shared_ptr<Reading> Begin(const SampleRequest& request);

  // Fixed after construction.
  const Dataset& dataset_;
  const int32_t threads_;

  // Read ahead and not asked for yet; null: nothing.
  std::shared_ptr<Reading> prepared_;
  // Last, so that its jobs end before anything they use. Null: 0 threads.
  std::unique_ptr<ThreadPool> pool_;
};

// Guesses which range of training samples a worker gets next. In a
// synchronous step a rank's ranges lie equally far apart within an epoch;
// elsewhere they mostly do. A wrong guess costs time, nothing else.
class RangeForecast {
 public:
  // Takes note of a range that was handed out, of `samples` an epoch, and
  // returns the guess: as far on as this one is from the one before, as long,
  // and cut at the epoch's end. Absent: no range before it in this epoch, or
  // none left behind it.
  std::optional<IndexRange> After(int64_t data_epoch, const IndexRange& range,
                                  int64_t samples);

 private:
  std::optional<int64_t> epoch_;
  int64_t begin_ = 0;
};

}  // namespace cohort
