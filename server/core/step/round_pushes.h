#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "common/moments.h"
#include "common/push.h"
#include "server/core/events/requests.h"
#include "server/core/model/commands.h"
#include "server/core/step/arrived_push.h"

namespace cohort {

// The pushes of one round as they arrive, rank by rank, and in sums that are
// read with every message.
class RoundPushes {
 public:
  RoundPushes() = default;
  // The model's partitions, and those of them that have a gradient.
  RoundPushes(int32_t partitions, int32_t trainable);
  // Pushes of the same ranks, before anything has come.
  RoundPushes Renewed() const;

  void Add(Rank rank) {
    if (pushes_.try_emplace(rank, partitions_).second) ++received_[0];
  }
  // `rank` leaves, with what was counted of its push.
  void Erase(Rank rank);

  bool Contains(Rank rank) const { return pushes_.contains(rank); }
  const ArrivedPush& operator[](Rank rank) const { return pushes_.at(rank); }
  // In rank order.
  const std::map<Rank, ArrivedPush>& all() const { return pushes_; }
  // Names their gradients, in rank order. All must be opened.
  std::vector<PushId> Contributors() const;

  // A message of `rank`, which must take part.
  ArrivedPush::Arrival Open(Rank rank, const PushKey& key,
                            const PushOpening& opening);
  ArrivedPush::Arrival Take(Rank rank, const GradientArrival& gradient);
  // A fold takes what all have sent of a partition. Returns its bytes.
  int64_t BeginFold(int32_t partition);
  // Hands over the moments of the closing of `rank`.
  std::vector<CallMoments> TakeMoments(Rank rank) {
    return pushes_.at(rank).TakeMoments();
  }
  ArrivedPush::Arrival Close(Rank rank, PushClosing closing, Instant now);
  // The opening of any push; null: none was opened.
  const PushOpening* AnyOpening() const {
    return first_.has_value() ? &pushes_.at(*first_).opening() : nullptr;
  }
  // What the lowest rank's push decides for all. There must be one.
  const PushOpening& LowestOpening() const {
    return pushes_.begin()->second.opening();
  }
  std::shared_ptr<const std::string> TakeLowestFrontEndState() {
    return pushes_.begin()->second.TakeFrontEndState();
  }

  bool IsComplete(Rank rank) const {
    return pushes_.at(rank).Complete(trainable_);
  }
  // Opened, and all its gradients have come.
  bool HasGradients(Rank rank) const {
    const ArrivedPush& push = pushes_.at(rank);
    return push.opened() && push.received() == trainable_;
  }
  bool AllHaveGradients() const {
    return received_.begin()->first == trainable_;
  }
  bool AllOpened() const { return opened_ == pushes_.size(); }
  bool AllClosed() const { return closed_count_ == pushes_.size(); }
  // All have sent it.
  bool HasArrived(int32_t partition) const {
    return arrived_[static_cast<size_t>(partition)] == pushes_.size();
  }
  // No rank has sent fewer partitions.
  bool IsFurthestBehind(Rank rank) const {
    return pushes_.at(rank).received() <= received_.begin()->first;
  }
  double GradientWeight() const;
  // Ranks that closed, and when, in order; those that have left too.
  const std::vector<std::pair<Rank, Instant>>& closed() const {
    return closed_;
  }

 private:
  // A rank with so many received partitions has gone, or received one more.
  void Uncount(int32_t received);

  int32_t partitions_ = 0;
  int32_t trainable_ = 0;
  std::map<Rank, ArrivedPush> pushes_;
  // By number of partitions received: how many ranks. While gradients are
  // paused, each message asks about each paused rank, so nothing may look
  // through all.
  std::map<int32_t, int32_t> received_;
  size_t opened_ = 0;
  // One that has opened.
  std::optional<Rank> first_;
  size_t closed_count_ = 0;
  // By partition: how many have sent it.
  std::vector<size_t> arrived_;
  std::vector<std::pair<Rank, Instant>> closed_;
};

}  // namespace cohort
