#include "server/core/ledger/data_cursor.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace cohort {

DataCursor::DataCursor(int64_t samples_per_epoch, int64_t epochs)
    : samples_per_epoch_(samples_per_epoch), epochs_(epochs) {
  undecided_[0] = samples_per_epoch;
}

DataCursor DataCursor::WithoutRanges() {
  DataCursor cursor;
  cursor.has_ranges_ = false;
  return cursor;
}

void DataCursor::Restore(int64_t epoch, int64_t position) {
  COHORT_CHECK(position >= 0 && position <= samples_per_epoch_,
               absl::StrCat("position ", position));
  epoch_ = epoch;
  position_ = position;
  undecided_.clear();
  undecided_[epoch] = samples_per_epoch_ - position;
}

namespace {

// Cuts `rest` once: the ranges are consecutive, in rank order.
void CutRanges(IndexRange rest, const std::vector<int64_t>& batch_sizes,
               int64_t global_batch, const ShareRule& rule, StepCut& cut) {
  // Given as a number, or by weights, a step is shared out among all members at
  // the end of a range too. Without this limit the first members would get all
  // that is left, in the batches of a whole step.
  int64_t samples = global_batch;
  if (samples == 0 && !rule.weights.empty()) {
    samples =
        std::accumulate(batch_sizes.begin(), batch_sizes.end(), int64_t{0});
  }
  const StepShares shares =
      ShareStep(batch_sizes, std::min(samples, rest.size()), rule);
  cut.batches = std::max(cut.batches, shares.batches);
  cut.ranges.clear();
  int64_t at = rest.begin;
  for (int64_t share : shares.samples) {
    const int64_t end = std::min(at + share, rest.end);
    cut.ranges.push_back({.begin = at, .end = end});
    at = end;
  }
  cut.end = at;
}

}  // namespace

StepCut DataCursor::Cut(const std::vector<int64_t>& batch_sizes,
                        int64_t global_batch, const ShareRule& rule,
                        int32_t local_steps) const {
  COHORT_CHECK(!exhausted(), "the last epoch is over");
  std::vector<std::vector<IndexRange>> local(
      local_steps > 0 ? batch_sizes.size() : 0);
  if (!has_ranges_) {
    for (std::vector<IndexRange>& steps : local) {
      steps.resize(static_cast<size_t>(local_steps));
    }
    return {.ranges = std::vector<IndexRange>(batch_sizes.size()),
            .local_steps = std::move(local),
            .without_ranges = true};
  }
  Piece rest{.epoch = epoch_,
             .range = {.begin = position_, .end = samples_per_epoch_}};
  // One range a step: it may be of an earlier epoch, and a step has one epoch.
  if (!reissue_.empty()) rest = reissue_.front();
  StepCut cut{.epoch = rest.epoch,
              .begin = rest.range.begin,
              .reissued = !reissue_.empty()};
  CutRanges(rest.range, batch_sizes, global_batch, rule, cut);
  if (local_steps == 0) return cut;
  for (int32_t step = 0;;) {
    for (size_t i = 0; i < local.size(); ++i) local[i].push_back(cut.ranges[i]);
    rest.range.begin = cut.end;
    if (++step == local_steps || rest.range.empty()) break;
    CutRanges(rest.range, batch_sizes, global_batch, rule, cut);
  }
  for (size_t i = 0; i < local.size(); ++i) {
    cut.ranges[i] = {};
    for (const IndexRange& step : local[i]) cut.ranges[i].end += step.size();
  }
  cut.local_steps = std::move(local);
  return cut;
}

bool DataCursor::Take(const StepCut& cut) {
  if (!has_ranges_) return false;
  if (cut.reissued) {
    Piece& front = reissue_.front();
    COHORT_CHECK(cut.epoch == front.epoch && cut.begin == front.range.begin,
                 "the cut does not start at the first reissued range");
    // The rest stays first, so a long range takes several steps.
    front.range.begin = cut.end;
    if (front.range.empty()) reissue_.pop_front();
  } else {
    COHORT_CHECK(cut.epoch == epoch_ && cut.begin == position_,
                 "the cut does not start at the cursor");
    Advance(cut.end - cut.begin);
  }
  undecided_[cut.epoch] -= cut.end - cut.begin;
  if (undecided_[cut.epoch] > 0) return false;
  undecided_.erase(cut.epoch);
  return true;
}

void DataCursor::Advance(int64_t samples) {
  position_ += samples;
  if (position_ < samples_per_epoch_) return;
  position_ = 0;
  ++epoch_;
  if (epoch_ < epochs_) undecided_[epoch_] = samples_per_epoch_;
}

std::optional<DataCursor::Piece> DataCursor::Next(int64_t batch_size) {
  if (!has_ranges_) return Piece{};
  if (!reissue_.empty()) {
    // Whole, whatever the batch size: the assignment says in how many batches
    // it is computed (ArrivalQueue::Next).
    Piece piece = reissue_.front();
    reissue_.pop_front();
    return piece;
  }
  if (epoch_ >= epochs_) return std::nullopt;
  Piece piece{
      .epoch = epoch_,
      .range = {.begin = position_,
                .end = std::min(position_ + batch_size, samples_per_epoch_)}};
  Advance(piece.range.size());
  return piece;
}

void DataCursor::Reissue(const Piece& piece) {
  if (has_ranges_) reissue_.push_back(piece);
}

std::optional<int64_t> DataCursor::Finish(const Piece& piece) {
  if (!has_ranges_) return std::nullopt;
  int64_t& left = undecided_[piece.epoch];
  left -= piece.range.size();
  COHORT_CHECK(left >= 0, "a range was decided twice");
  if (left > 0) return std::nullopt;
  undecided_.erase(piece.epoch);
  return piece.epoch;
}

void DataCursor::RestoreOpen(const std::vector<Piece>& open) {
  for (const Piece& piece : open) {
    // Restore has counted everything before the cursor as decided.
    undecided_[piece.epoch] += piece.range.size();
    reissue_.push_back(piece);
  }
}

}  // namespace cohort
