#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "common/assignment.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/push.h"

namespace cohort {

// What one rank was given to do, over all its incarnations, and when it last
// moved the run forward.
class RankWork {
 public:
  // Parts of a push besides the partitions.
  enum Part : int32_t { kOpening = -2, kClosing = -1 };

  // Given and not ended; survives a loss under on_worker_loss=wait.
  const std::optional<Assignment>& outstanding() const { return outstanding_; }
  bool busy() const { return outstanding_.has_value(); }
  // It was given a training assignment that has not ended.
  bool trains() const {
    return busy() && outstanding_->kind == AssignmentKind::kTrain;
  }
  // The key of the push that belongs to the outstanding assignment.
  PushKey key() const {
    return {.sequence = outstanding_->sequence,
            .attempt = outstanding_->attempt};
  }
  // Number of the next assignment.
  Sequence next_sequence() const { return next_sequence_; }
  // Notified to wait: the next assignment goes to its session.
  bool waiting() const { return waiting_; }
  // For the deadlines.
  Instant last_progress() const { return last_progress_; }

  // `next` takes the next number.
  void Give(Assignment next);
  // The outstanding assignment is to be done again, from this version.
  void Repeat(Version version);
  void End() { outstanding_.reset(); }
  void SetWaiting(bool waiting) { waiting_ = waiting; }
  void SetNextSequence(Sequence next) { next_sequence_ = next; }

  void NoteProgress(Instant now) { last_progress_ = now; }
  // `incarnation` has sent a part of a push, a partition or one of Part. If it
  // has sent that before, it is no progress.
  void NotePart(Incarnation incarnation, const PushKey& key, int32_t part,
                Instant now);
  // A process has joined, or come back.
  void NoteReturn(Instant now);
  // One has since the last call, so that the next verdict may go to a stream
  // that is dead or not there yet.
  bool TakeReturned() { return std::exchange(returned_, false); }

 private:
  std::optional<Assignment> outstanding_;
  Sequence next_sequence_{1};
  bool waiting_ = false;
  bool returned_ = false;
  Instant last_progress_;
  // The parts of one push that one incarnation has sent, from kOpening on.
  Incarnation sender_;
  PushKey sent_of_;
  std::vector<bool> sent_;
};

}  // namespace cohort
