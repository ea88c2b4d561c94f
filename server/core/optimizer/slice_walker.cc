#include "server/core/optimizer/slice_walker.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace cohort {
namespace {

constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));

bool AllFinite(const std::byte* floats, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    float value = 0;
    std::memcpy(&value, floats + i * kFloatBytes, sizeof(value));
    if (!std::isfinite(value)) return false;
  }
  return true;
}

}  // namespace

SliceWalker::SliceWalker(const FoldJob& job, int64_t block_elements)
    : job_(job),
      block_elements_(block_elements),
      gradients_(job.contributions.size()),
      cut_floats_(job.contributions.size()) {
  const int64_t elements = job.weights->size();
  int64_t in_slices = 0;
  for (const SliceStep& slice : job.slices) in_slices += slice.count;
  COHORT_CHECK(
      in_slices == elements,
      absl::StrCat("slices: got ", in_slices, " elements, want ", elements));
  at_block_.reserve(job.contributions.size());
  for (const FoldContribution& c : job.contributions) {
    COHORT_CHECK(c.gradient.size_bytes() == elements * kFloatBytes,
                 absl::StrCat("got ", c.gradient.size_bytes(), " bytes, want ",
                              elements * kFloatBytes));
    at_block_.emplace_back(c.gradient);
  }
  at_run_ = at_block_;
  if (!job.slices.empty()) slice_end_ = job.slices.front().count;
}

bool SliceWalker::Next() {
  for (RopeReader& reader : at_block_) {
    reader.Skip(block_.count() * kFloatBytes);
  }
  block_.begin = block_.end;
  while (block_.begin == slice_end_) {
    if (block_.begin == job_.weights->size()) return false;
    ++block_.slice;
    slice_end_ += job_.slices[block_.slice].count;
  }
  block_.end =
      std::min(slice_end_ - block_.begin, block_elements_) + block_.begin;
  return true;
}

void SliceWalker::ForEachRun(RunBody body) {
  std::copy(at_block_.begin(), at_block_.end(), at_run_.begin());
  for (int64_t begin = block_.begin; begin < block_.end;) {
    int64_t count = block_.end - begin;
    for (const RopeReader& reader : at_run_) {
      count = std::min(count, reader.contiguous_bytes() / kFloatBytes);
    }
    // No whole float is left in some piece: the next one is cut.
    count = std::max<int64_t>(count, 1);
    for (size_t k = 0; k < at_run_.size(); ++k) {
      gradients_[k] =
          at_run_[k].Peek(count * kFloatBytes, cut_floats_[k].data());
    }
    if (!body(begin, count, gradients_)) return;
    for (RopeReader& reader : at_run_) reader.Skip(count * kFloatBytes);
    begin += count;
  }
}

void SliceWalker::ForEachFrozenIn(int64_t begin, int64_t end,
                                  RangeBody body) const {
  if (job_.frozen == nullptr) return;
  auto run = std::partition_point(
      job_.frozen->begin(), job_.frozen->end(),
      [begin](const ElementRun& r) { return r.offset + r.count <= begin; });
  for (; run != job_.frozen->end() && run->offset < end; ++run) {
    const int64_t first = std::max(run->offset, begin);
    body(first, std::min(run->offset + run->count, end) - first);
  }
}

void SliceWalker::ForEachFreeIn(int64_t begin, int64_t end,
                                RangeBody body) const {
  ForEachFrozenIn(begin, end, [&](int64_t frozen, int64_t count) {
    if (begin < frozen) body(begin, frozen - begin);
    begin = frozen + count;
  });
  if (begin < end) body(begin, end - begin);
}

std::optional<Rank> SliceWalker::NonfiniteRank() {
  size_t first = job_.contributions.size();
  ForEachRun([&](int64_t begin, int64_t count,
                 absl::Span<const std::byte* const> gradients) {
    ForEachFreeIn(begin, begin + count, [&](int64_t free, int64_t free_count) {
      const int64_t offset = (free - begin) * kFloatBytes;
      for (size_t k = 0; k < first; ++k) {
        if (!AllFinite(gradients[k] + offset, free_count)) first = k;
      }
    });
    return first > 0;
  });
  if (first == job_.contributions.size()) return std::nullopt;
  return job_.contributions[first].rank;
}

}  // namespace cohort
