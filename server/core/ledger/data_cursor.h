#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "common/assignment.h"
#include "common/ids.h"
#include "server/core/events/effects.h"
#include "server/core/ledger/step_shares.h"

namespace cohort {

// The indices of one synchronous step: consecutive ranges in rank order. With
// local steps they follow one another, each cut like a step.
struct StepCut {
  int64_t epoch = 0;
  // One entry a rank asked for, same order; may be short or empty at the end
  // of an epoch. With local steps: as many as all of them have, from 0.
  std::vector<IndexRange> ranges;
  // With local steps: those of each rank, equally many.
  std::vector<std::vector<IndexRange>> local_steps;
  int64_t begin = 0;
  int64_t end = 0;
  // Out of a range that was handed out before and lost.
  bool reissued = false;
  // Number of batches that each rank computes its range in.
  int32_t batches = 1;
  // The workers bring their own data: all ranges are empty.
  bool without_ranges = false;

  // How many local steps there are.
  int64_t local_count() const {
    return local_steps.empty()
               ? 0
               : static_cast<int64_t>(local_steps.front().size());
  }
};

// Which samples come next. One cursor for all ranks, over each epoch's
// permutation, so that any number of workers sees the same order and each
// sample is used once an epoch.
class DataCursor {
 public:
  using Piece = IssuedRange;

  DataCursor() = default;
  DataCursor(int64_t samples_per_epoch, int64_t epochs);
  // The workers bring their own data: every range is empty, epoch 0 never ends,
  // and nothing is issued again.
  static DataCursor WithoutRanges();

  // Continues at `position` of `epoch`.
  void Restore(int64_t epoch, int64_t position);

  int64_t epoch() const { return epoch_; }
  int64_t position() const { return position_; }
  int64_t epochs() const { return epochs_; }
  // Everything was handed out, and nothing waits to be issued again.
  bool exhausted() const {
    return has_ranges_ && epoch_ >= epochs_ && reissue_.empty();
  }

  // ---- sync: cut, then take it once the step is committed; a cut that is
  // never taken leaves no trace. Ranges to be issued again come first, one a
  // step. `global_batch` and `rule`: as in ShareStep. `local_steps`: at the end
  // of an epoch there may be fewer; 0: none. Must not be exhausted.
  StepCut Cut(const std::vector<int64_t>& batch_sizes, int64_t global_batch = 0,
              const ShareRule& rule = {}, int32_t local_steps = 0) const;
  // Returns true if this ended an epoch.
  bool Take(const StepCut& cut);

  // ---- async: hands out at once. Ranges to be issued again come first.
  std::optional<Piece> Next(int64_t batch_size);
  // Queues the range of a lost rank, to be handed out again.
  void Reissue(const Piece& piece);
  // The push of this piece is decided. Returns the epoch if this was its last
  // piece.
  std::optional<int64_t> Finish(const Piece& piece);
  // Restores how much of a half-finished epoch is still open.
  void RestoreOpen(const std::vector<Piece>& open);

  const std::deque<Piece>& reissue() const { return reissue_; }

 private:
  void Advance(int64_t samples);

  bool has_ranges_ = true;
  int64_t samples_per_epoch_ = 0;
  int64_t epochs_ = 0;
  int64_t epoch_ = 0;
  int64_t position_ = 0;
  std::deque<Piece> reissue_;
  // By epoch: samples whose push is not decided yet, handed out or not.
  std::map<int64_t, int64_t> undecided_;
};

}  // namespace cohort
