#include "server/core/step/round_pushes.h"

namespace cohort {

RoundPushes::RoundPushes(int32_t partitions, int32_t trainable)
    : partitions_(partitions),
      trainable_(trainable),
      arrived_(static_cast<size_t>(partitions)) {}

RoundPushes RoundPushes::Renewed() const {
  RoundPushes renewed(partitions_, trainable_);
  for (const auto& [rank, push] : pushes_) renewed.Add(rank);
  return renewed;
}

void RoundPushes::Erase(Rank rank) {
  const ArrivedPush& push = pushes_.at(rank);
  if (push.opened()) --opened_;
  if (push.closed()) --closed_count_;
  for (size_t p = 0; p < arrived_.size(); ++p) {
    if (push.Has(static_cast<int32_t>(p))) --arrived_[p];
  }
  Uncount(push.received());
  // `closed_` keeps it: who came last is a fact of the round.
  pushes_.erase(rank);
  if (first_ != rank) return;
  first_.reset();
  for (const auto& [other, of] : pushes_) {
    if (of.opened()) first_ = other;
  }
}

std::vector<PushId> RoundPushes::Contributors() const {
  std::vector<PushId> contributors;
  contributors.reserve(pushes_.size());
  for (const auto& [rank, push] : pushes_) {
    contributors.push_back({.rank = rank, .key = push.key()});
  }
  return contributors;
}

int64_t RoundPushes::BeginFold(int32_t partition) {
  int64_t bytes = 0;
  for (auto& [rank, push] : pushes_) bytes += push.BeginFold(partition);
  return bytes;
}

ArrivedPush::Arrival RoundPushes::Open(Rank rank, const PushKey& key,
                                       const PushOpening& opening) {
  const ArrivedPush::Arrival arrival = pushes_.at(rank).Open(key, opening);
  if (arrival == ArrivedPush::Arrival::kNew) {
    ++opened_;
    if (!first_.has_value()) first_ = rank;
  }
  return arrival;
}

ArrivedPush::Arrival RoundPushes::Take(Rank rank,
                                       const GradientArrival& gradient) {
  ArrivedPush& push = pushes_.at(rank);
  const int32_t received = push.received();
  const ArrivedPush::Arrival arrival =
      push.Add(gradient.partition, gradient.bytes, gradient.sampled_checksum,
               gradient.absent_slices);
  if (arrival == ArrivedPush::Arrival::kNew) {
    ++arrived_[static_cast<size_t>(gradient.partition)];
    // In this order `received_` is never empty.
    ++received_[push.received()];
    Uncount(received);
  }
  return arrival;
}

ArrivedPush::Arrival RoundPushes::Close(Rank rank, PushClosing closing,
                                        Instant now) {
  const ArrivedPush::Arrival arrival =
      pushes_.at(rank).Close(std::move(closing));
  if (arrival == ArrivedPush::Arrival::kNew) {
    closed_.emplace_back(rank, now);
    ++closed_count_;
  }
  return arrival;
}

void RoundPushes::Uncount(int32_t received) {
  const auto at = received_.find(received);
  if (--at->second == 0) received_.erase(at);
}

double RoundPushes::GradientWeight() const {
  double weight = 0;
  for (const auto& [rank, push] : pushes_) {
    weight += push.opening().GradientWeight();
  }
  return weight;
}

}  // namespace cohort
