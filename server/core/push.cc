#include "server/core/push.h"

#include <utility>

namespace cohort {

Push::Push(int32_t partitions)
    : received_(static_cast<size_t>(partitions)),
      gradients_(static_cast<size_t>(partitions)),
      checksums_(static_cast<size_t>(partitions)),
      absent_(static_cast<size_t>(partitions)) {}

Push::Arrival Push::Open(const PushOpening& opening) {
  if (opening_.has_value()) {
    return opening_->samples == opening.samples &&
                   opening_->loss_weight == opening.loss_weight
               ? Arrival::kRepeated
               : Arrival::kMismatch;
  }
  opening_ = opening;
  return Arrival::kNew;
}

Push::Arrival Push::Add(int32_t partition, ByteRope gradient, uint64_t checksum,
                        std::vector<int32_t> absent_slices) {
  const auto p = static_cast<size_t>(partition);
  if (received_[p]) {
    return checksums_[p] == checksum && absent_[p] == absent_slices
               ? Arrival::kRepeated
               : Arrival::kMismatch;
  }
  received_[p] = true;
  ++received_count_;
  held_bytes_ += gradient.size_bytes();
  gradients_[p] = std::move(gradient);
  checksums_[p] = checksum;
  absent_[p] = std::move(absent_slices);
  return Arrival::kNew;
}

Push::Arrival Push::Close(PushClosing closing) {
  if (closing_.has_value()) {
    return closing_->loss_sum == closing.loss_sum ? Arrival::kRepeated
                                                  : Arrival::kMismatch;
  }
  closing_ = std::move(closing);
  return Arrival::kNew;
}

ByteRope Push::TakeGradient(int32_t partition) {
  ByteRope taken =
      std::exchange(gradients_[static_cast<size_t>(partition)], {});
  held_bytes_ -= taken.size_bytes();
  return taken;
}

}  // namespace cohort
