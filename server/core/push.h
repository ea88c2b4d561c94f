#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/assignment.h"
#include "common/byte_rope.h"
#include "common/ids.h"

namespace cohort {

// What has arrived of one rank's push.
class Push {
 public:
  // How a message relates to what was there.
  enum class Arrival {
    kNew,
    // Identical key; same checksum.
    kRepeated,
    // Identical key; another checksum: the replay was not exact.
    kMismatch,
  };

  explicit Push(int32_t partitions) : partitions_(partitions) {}

  bool opened() const { return opening_.has_value(); }
  bool closed() const { return closing_.has_value(); }
  // Everything is here: opened, `trainable` partitions received, closed.
  bool Complete(int32_t trainable) const {
    return opened() && closed() && received_count_ == trainable;
  }
  // Partitions that have come.
  int32_t received() const { return received_count_; }
  // Size of the gradients that have come and were not taken.
  int64_t held_bytes() const { return held_bytes_; }
  bool Has(int32_t partition) const {
    return !parts_.empty() && parts_[static_cast<size_t>(partition)].received;
  }
  const PushOpening& opening() const { return *opening_; }
  const PushClosing& closing() const { return *closing_; }

  Arrival Open(const PushOpening& opening);
  Arrival Add(int32_t partition, ByteRope gradient, uint64_t checksum,
              std::vector<int32_t> absent_slices);
  Arrival Close(PushClosing closing);

  // Hands the moments of the closing over.
  std::vector<CallMoments> TakeMoments() {
    return std::move(closing_->moments);
  }
  // Hands the gradient over; Has() stays true.
  ByteRope TakeGradient(int32_t partition);
  const std::vector<int32_t>& absent_slices(int32_t partition) const {
    return parts_[static_cast<size_t>(partition)].absent_slices;
  }

 private:
  std::optional<PushOpening> opening_;
  std::optional<PushClosing> closing_;
  struct Part {
    bool received = false;
    ByteRope gradient;
    uint64_t checksum = 0;
    std::vector<int32_t> absent_slices;
  };
  int32_t partitions_ = 0;
  // By partition; empty before the first has come, because a step begins with
  // a push of every rank at once.
  std::vector<Part> parts_;
  int32_t received_count_ = 0;
  int64_t held_bytes_ = 0;
};

}  // namespace cohort
