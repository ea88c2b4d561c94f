#include "worker/session/partition_schedule.h"

#include <utility>

namespace cohort {

PartitionSchedule::PartitionSchedule(const std::vector<Partition>& partitions,
                                     size_t parameters,
                                     std::vector<int32_t> order)
    : partitions_of_(parameters),
      order_(std::move(order)),
      comes_late_(partitions.size()) {
  for (size_t p = 0; p < partitions.size(); ++p) {
    trainable_.push_back(partitions[p].trainable);
    if (!partitions[p].trainable) continue;
    for (const Slice& slice : partitions[p].slices) {
      std::vector<size_t>& holders =
          partitions_of_[static_cast<size_t>(slice.parameter)];
      if (holders.empty() || holders.back() != p) holders.push_back(p);
    }
  }
  Begin();
}

void PartitionSchedule::Begin() {
  final_.assign(partitions_of_.size(), false);
  missing_.assign(trainable_.size(), 0);
  complete_.assign(trainable_.size(), false);
  left_.assign(trainable_.size(), false);
  for (const std::vector<size_t>& holders : partitions_of_) {
    for (const size_t p : holders) ++missing_[p];
  }
}

std::vector<int32_t> PartitionSchedule::Finish(size_t parameter) {
  final_[parameter] = true;
  std::vector<int32_t> leaving;
  for (const size_t p : partitions_of_[parameter]) {
    if (--missing_[p] == 0) Complete(p, leaving);
  }
  return leaving;
}

std::vector<int32_t> PartitionSchedule::Rest() {
  std::vector<int32_t> leaving;
  // Partitions leave in the server's order here too: each one waits for those
  // before it, and with the last of the loop all are complete.
  for (size_t p = 0; p < trainable_.size(); ++p) {
    if (!trainable_[p] || complete_[p]) continue;
    comes_late_[p] = true;
    Complete(p, leaving);
  }
  return leaving;
}

void PartitionSchedule::Complete(size_t partition,
                                 std::vector<int32_t>& leaving) {
  complete_[partition] = true;
  if (order_.empty()) {
    left_[partition] = true;
    leaving.push_back(static_cast<int32_t>(partition));
    return;
  }
  // All workers keep to one order, so that the server can fold a partition soon
  // and needs little room (GradientHooks). Only one that no pass completes is
  // not waited for: it would hold up all after it until the pass is over.
  for (const int32_t turn : order_) {
    const auto due = static_cast<size_t>(turn);
    if (left_[due]) continue;
    if (complete_[due]) {
      left_[due] = true;
      leaving.push_back(turn);
    } else if (!comes_late_[due]) {
      break;
    }
  }
}

}  // namespace cohort
