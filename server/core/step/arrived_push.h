#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/ids.h"
#include "common/moments.h"
#include "common/push.h"

namespace cohort {

// The part of one rank's push that has arrived. Its gradients are in the
// processes that own their partitions.
class ArrivedPush {
 public:
  // How a message relates to what was there.
  enum class Arrival {
    kNew,
    // Identical key; same content, as far as it is compared.
    kRepeated,
    // Identical key; another content: the replay was not exact.
    kMismatch,
  };

  explicit ArrivedPush(int32_t partitions) : partitions_(partitions) {}

  bool opened() const { return opening_.has_value(); }
  bool closed() const { return closing_.has_value(); }
  // Everything is here: opened, `trainable` partitions received, closed.
  bool Complete(int32_t trainable) const {
    return opened() && closed() && received_count_ == trainable;
  }
  // Partitions that have come.
  int32_t received() const { return received_count_; }
  // Size of the gradients that have come and no fold has taken.
  int64_t unfolded_bytes() const { return unfolded_bytes_; }
  bool Has(int32_t partition) const {
    return !parts_.empty() && parts_[static_cast<size_t>(partition)].received;
  }
  // Key and opening only of a push that was opened, the closing only of one
  // that was closed.
  const PushKey& key() const { return key_; }
  const PushOpening& opening() const { return *opening_; }
  const PushClosing& closing() const { return *closing_; }

  Arrival Open(const PushKey& key, const PushOpening& opening);
  // A gradient of so many bytes.
  Arrival Add(int32_t partition, int64_t bytes, uint64_t sampled_checksum,
              const std::vector<int32_t>& absent_slices);
  Arrival Close(PushClosing closing);

  // Hands the moments of the closing over.
  std::vector<CallMoments> TakeMoments() {
    return std::move(closing_->moments);
  }
  // Hands the front-end state of the closing over; null if it has none.
  std::shared_ptr<const std::string> TakeFrontEndState();
  // A fold takes the gradient; Has() stays true. Returns its bytes.
  int64_t BeginFold(int32_t partition);

 private:
  PushKey key_;
  std::optional<PushOpening> opening_;
  std::optional<PushClosing> closing_;
  struct Part {
    bool received = false;
    // That no fold has taken.
    int64_t bytes = 0;
    uint64_t sampled_checksum = 0;
    std::vector<int32_t> absent_slices;
  };
  int32_t partitions_ = 0;
  // By partition; empty before the first has come, because a step begins with
  // a push of every rank at once.
  std::vector<Part> parts_;
  int32_t received_count_ = 0;
  int64_t unfolded_bytes_ = 0;
};

}  // namespace cohort
