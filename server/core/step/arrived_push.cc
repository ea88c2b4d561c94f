#include "server/core/step/arrived_push.h"

#include <bit>
#include <utility>

namespace cohort {

ArrivedPush::Arrival ArrivedPush::Open(const PushKey& key,
                                       const PushOpening& opening) {
  if (opening_.has_value()) {
    return opening_->samples == opening.samples &&
                   opening_->loss_weight == opening.loss_weight &&
                   opening_->gradient_weight == opening.gradient_weight
               ? Arrival::kRepeated
               : Arrival::kMismatch;
  }
  key_ = key;
  opening_ = opening;
  return Arrival::kNew;
}

ArrivedPush::Arrival ArrivedPush::Add(
    int32_t partition, int64_t bytes, uint64_t sampled_checksum,
    const std::vector<int32_t>& absent_slices) {
  if (parts_.empty()) parts_.resize(static_cast<size_t>(partitions_));
  Part& part = parts_[static_cast<size_t>(partition)];
  if (part.received) {
    return part.sampled_checksum == sampled_checksum &&
                   part.absent_slices == absent_slices
               ? Arrival::kRepeated
               : Arrival::kMismatch;
  }
  ++received_count_;
  unfolded_bytes_ += bytes;
  part = {.received = true,
          .bytes = bytes,
          .sampled_checksum = sampled_checksum,
          .absent_slices = absent_slices};
  return Arrival::kNew;
}

ArrivedPush::Arrival ArrivedPush::Close(PushClosing closing) {
  if (closing_.has_value()) {
    // By bits, because the loss of a model that diverges may be NaN.
    const auto bits = [](double v) { return std::bit_cast<uint64_t>(v); };
    return bits(closing_->loss_sum) == bits(closing.loss_sum)
               ? Arrival::kRepeated
               : Arrival::kMismatch;
  }
  closing_ = std::move(closing);
  return Arrival::kNew;
}

std::shared_ptr<const std::string> ArrivedPush::TakeFrontEndState() {
  if (!closing_->front_end_state.has_value()) return nullptr;
  return std::make_shared<const std::string>(
      *std::exchange(closing_->front_end_state, std::nullopt));
}

int64_t ArrivedPush::BeginFold(int32_t partition) {
  const int64_t bytes =
      std::exchange(parts_[static_cast<size_t>(partition)].bytes, 0);
  unfolded_bytes_ -= bytes;
  return bytes;
}

}  // namespace cohort
