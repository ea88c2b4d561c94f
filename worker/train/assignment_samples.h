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

// True for an evaluation without moving statistics.
bool NormalisesByBatch(const Assignment& assignment);

// The samples that the assignments of a run are about, read ahead where that
// helps.
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

  // Brings the images to an accelerator if they fit; see DeviceBatches::Hold.
  absl::Status HoldOnDevice();

  // Errors: Internal, a range beyond the data set.
  absl::StatusOr<std::vector<int64_t>> IndicesOf(const Assignment& assignment);
  // Those of a training or collecting assignment, augmented, where the model
  // is computed.
  absl::StatusOr<Batch> Read(const Assignment& assignment);
  // Has what will probably come after this assignment read meanwhile.
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
