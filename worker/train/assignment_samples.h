#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/assignment.h"
#include "worker/datasets/data_order.h"
#include "worker/datasets/dataset.h"
#include "worker/device/compute_device.h"
#include "worker/train/batch_reader.h"
#include "worker/train/device_batches.h"

namespace cohort {

// True for an evaluation that uses no moving statistics.
bool NormalisesByBatch(const Assignment& assignment);

// Reads the samples of a run's assignments, ahead of need if that helps.
//
// Thread safety: one thread calls.
class AssignmentSamples {
 public:
  struct Options {
    uint64_t run_seed = 0;
    // See BatchReader.
    int32_t loader_threads = 0;
  };

  // `dataset` must outlive it.
  AssignmentSamples(const Dataset& dataset, const Compute& compute,
                    const Options& options, DataOrder order);

  // Copies the images to an accelerator if they fit; see DeviceBatches::Hold.
  absl::Status HoldOnDevice();

  // Errors: Internal for a range beyond the data set.
  absl::StatusOr<std::vector<int64_t>> IndicesOf(const Assignment& assignment);
  // The augmented samples of a training or collecting assignment, on the device
  // that computes the model.
  absl::StatusOr<Batch> Read(const Assignment& assignment);
  // Starts reading the samples that will probably follow this assignment's.
  absl::Status PrepareNext(const Assignment& assignment);

  // Null on the CPU.
  DeviceBatches* batches() { return batches_.get(); }

 private:
  // Fixed after construction.
  const Dataset& dataset_;
  const Compute compute_;
  const uint64_t run_seed_;

  DataOrder order_;
  BatchReader reader_;
  RangeForecast forecast_;
  std::unique_ptr<DeviceBatches> batches_;
};

}  // namespace cohort
