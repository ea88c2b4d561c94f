#include "server/partitions/slice_walker.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/bfloat16.h"
#include "common/check.h"
#include "common/element_type.h"

namespace cohort {
namespace {

constexpr int64_t kFloatBytes = BytesOf(ElementType::kFloat32);
// As many as the kernel sums up at a time: 4 KiB of each contributor.
constexpr int64_t kExpandedElements = 1024;

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
  bool expands = false;
  at_block_.reserve(job.contributions.size());
  for (const FoldContribution& c : job.contributions) {
    COHORT_CHECK(c.gradient.size_bytes() == elements * BytesOf(c.type),
                 absl::StrCat("got ", c.gradient.size_bytes(), " bytes, want ",
                              elements * BytesOf(c.type)));
    at_block_.emplace_back(c.gradient);
    expands = expands || c.type != ElementType::kFloat32;
  }
  at_run_ = at_block_;
  run_elements_ = elements;
  if (expands) {
    run_elements_ = std::min(elements, kExpandedElements);
    expanded_.resize(static_cast<size_t>(run_elements_) *
                     job.contributions.size());
  }
  if (!job.slices.empty()) slice_end_ = job.slices.front().count;
}

bool SliceWalker::Next() {
  for (size_t k = 0; k < at_block_.size(); ++k) {
    at_block_[k].Skip(block_.count() * BytesOf(job_.contributions[k].type));
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
    int64_t count = std::min(block_.end - begin, run_elements_);
    for (size_t k = 0; k < at_run_.size(); ++k) {
      count = std::min(count, at_run_[k].contiguous_bytes() /
                                  BytesOf(job_.contributions[k].type));
    }
    // No whole element is left in some piece: the next one is cut.
    count = std::max<int64_t>(count, 1);
    for (size_t k = 0; k < at_run_.size(); ++k) {
      gradients_[k] = FloatsOf(k, count);
    }
    if (!body(begin, count, gradients_)) return;
    for (size_t k = 0; k < at_run_.size(); ++k) {
      at_run_[k].Skip(count * BytesOf(job_.contributions[k].type));
    }
    begin += count;
  }
}

const std::byte* SliceWalker::FloatsOf(size_t k, int64_t count) {
  const ElementType type = job_.contributions[k].type;
  const std::byte* const bytes =
      at_run_[k].Peek(count * BytesOf(type), cut_floats_[k].data());
  if (type == ElementType::kFloat32) return bytes;
  float* const floats =
      expanded_.data() + k * static_cast<size_t>(run_elements_);
  ExpandBFloat16(bytes, count, floats);
  return reinterpret_cast<const std::byte*>(floats);
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
