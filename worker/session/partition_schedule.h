#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/model_layout.h"

namespace cohort {

// Decides when the gradient of each partition leaves: as soon as those of all
// its parameters are final, in the order that the server gave to all workers. A
// partition that is complete before its turn waits; one that no pass completed
// before (a parameter that is not used) is not waited for.
//
// Thread safety: none.
class PartitionSchedule {
 public:
  // `parameters` is the number of parameters in the layout. `order` has every
  // trainable partition once; if empty, partitions leave as they are complete.
  PartitionSchedule(const std::vector<Partition>& partitions, size_t parameters,
                    std::vector<int32_t> order);

  // Starts a push.
  void Begin();
  // The parameter's gradient was final before in this push.
  bool IsFinal(size_t parameter) const { return final_[parameter]; }
  // The parameter's gradient is final. Returns the partitions that leave now.
  std::vector<int32_t> Finish(size_t parameter);
  // The backward pass is over. Returns the partitions that have not left.
  std::vector<int32_t> Rest();

 private:
  // `partition` is complete: appends those whose turn it is.
  void Complete(size_t partition, std::vector<int32_t>& leaving);

  // Fixed after construction.
  std::vector<bool> trainable_;
  // By parameter: the partitions that hold its gradient.
  std::vector<std::vector<size_t>> partitions_of_;
  const std::vector<int32_t> order_;
  // By partition: true once no pass has completed it. The others then no longer
  // wait for its turn.
  std::vector<bool> comes_late_;

  // State of the push in progress.
  std::vector<bool> final_;
  // By partition: the number of parameters that are not final yet.
  std::vector<int32_t> missing_;
  std::vector<bool> complete_;
  std::vector<bool> left_;
};

}  // namespace cohort
