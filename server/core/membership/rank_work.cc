#include "server/core/membership/rank_work.h"

#include <cstddef>

namespace cohort {

void RankWork::Give(Assignment next) {
  outstanding_ = std::move(next);
  outstanding_->sequence = next_sequence_;
  next_sequence_ = next_sequence_.Next();
}

void RankWork::Repeat(Version version) {
  outstanding_->attempt = outstanding_->attempt.Next();
  outstanding_->version = version;
}

void RankWork::NotePart(Incarnation incarnation, const PushKey& key,
                        int32_t part, Instant now) {
  if (sender_ != incarnation || sent_of_ != key) {
    sender_ = incarnation;
    sent_of_ = key;
    sent_.clear();
  }
  const auto at = static_cast<size_t>(part - kOpening);
  if (at >= sent_.size()) sent_.resize(at + 1);
  if (sent_[at]) return;
  sent_[at] = true;
  NoteProgress(now);
}

void RankWork::NoteReturn(Instant now) {
  NoteProgress(now);
  waiting_ = true;
  returned_ = true;
}

}  // namespace cohort
