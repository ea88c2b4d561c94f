#include "server/core/optimizer/fold_job.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "server/core/optimizer/staged_fold.h"

namespace cohort {
namespace {

// A run of elements that lies in one slice and is contiguous in every rope.
struct Run {
  int64_t offset = 0;
  int64_t count = 0;
};

bool AllFinite(const std::byte* floats, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    float value = 0;
    std::memcpy(&value, floats + i * 4, sizeof(value));
    if (!std::isfinite(value)) return false;
  }
  return true;
}

// The first contributor with a non-finite value, or none if only the sum is
// not finite.
std::optional<Rank> Culprit(const FoldJob& job,
                            absl::Span<const std::byte* const> gradients,
                            int64_t count) {
  for (size_t k = 0; k < gradients.size(); ++k) {
    if (!AllFinite(gradients[k], count)) return job.contributions[k].rank;
  }
  return std::nullopt;
}

// Walks one partition slice by slice while the ropes' pieces go by.
class Folder {
 public:
  // `velocity` null: the job moves none.
  Folder(const FoldJob& job, const kernels::Backend& backend,
         FloatBuffer& weights, const FloatBuffer* velocity,
         FloatBuffer* new_velocity)
      : job_(job),
        backend_(backend),
        weights_(weights),
        velocity_(velocity),
        new_velocity_(new_velocity) {}

  void Fold(int64_t offset, int64_t count,
            absl::Span<const std::byte* const> gradients) {
    std::vector<const std::byte*> at(gradients.begin(), gradients.end());
    while (count > 0 && !nonfinite_.has_value()) {
      const SliceStep& slice = job_.slices[slice_];
      const int64_t run = std::min(count, slice_begin_ + slice.count - offset);
      FoldRun({.offset = offset, .count = run}, slice, at);
      for (const std::byte*& pointer : at) pointer += run * 4;
      offset += run;
      count -= run;
      if (offset == slice_begin_ + slice.count) {
        slice_begin_ += slice.count;
        ++slice_;
      }
    }
  }

  const std::optional<NonfiniteGradient>& nonfinite() const {
    return nonfinite_;
  }

 private:
  void FoldRun(const Run& run, const SliceStep& slice,
               absl::Span<const std::byte* const> gradients) {
    const float* weights = job_.weights->data() + run.offset;
    const bool moves = velocity_ != nullptr;
    if (slice.skip) {
      std::copy_n(weights, run.count, weights_.data() + run.offset);
      if (moves) {
        std::copy_n(velocity_->data() + run.offset, run.count,
                    new_velocity_->data() + run.offset);
      }
      return;
    }
    kernels::SgdStep step = slice.step;
    step.gradient_scale *= job_.gradient_scale;
    const bool finite = backend_.FoldSgd(
        step,
        {.gradients = gradients,
         .count = run.count,
         .weights_in = weights,
         .weights_out = weights_.data() + run.offset,
         .velocity_in = moves ? velocity_->data() + run.offset : nullptr,
         .velocity_out = moves ? new_velocity_->data() + run.offset : nullptr});
    if (finite) return;
    nonfinite_ = {.rank = Culprit(job_, gradients, run.count),
                  .partition = job_.partition,
                  .slice = static_cast<int32_t>(slice_)};
  }

  const FoldJob& job_;
  const kernels::Backend& backend_;
  FloatBuffer& weights_;
  const FloatBuffer* velocity_;
  FloatBuffer* new_velocity_;
  size_t slice_ = 0;
  int64_t slice_begin_ = 0;
  std::optional<NonfiniteGradient> nonfinite_;
};

bool IsStaged(const FoldJob& job) {
  return job.pass != FoldPass::kWhole || job.frozen != nullptr ||
         job.compensation.read_weights != nullptr ||
         job.slots.first_moment != nullptr;
}

}  // namespace

int64_t GradientBytes(const FoldJob& job) {
  int64_t bytes = 0;
  for (const FoldContribution& c : job.contributions) {
    bytes += c.gradient.size_bytes();
  }
  return bytes;
}

FoldResult RunFold(const FoldJob& job, const kernels::Backend& backend,
                   FloatBufferPool& pool) {
  if (IsStaged(job)) return RunStagedFold(job, backend, pool);
  const int64_t elements = job.weights->size();
  std::shared_ptr<FloatBuffer> weights = pool.Take(elements);
  SharedFloats Slots::*const slot = VelocityOf(job.slots);
  std::shared_ptr<FloatBuffer> velocity;
  if (slot != nullptr) velocity = pool.Take(elements);

  std::vector<const ByteRope*> ropes;
  ropes.reserve(job.contributions.size());
  for (const FoldContribution& c : job.contributions) {
    ropes.push_back(&c.gradient);
  }
  Folder folder(job, backend, *weights,
                slot == nullptr ? nullptr : (job.slots.*slot).get(),
                velocity.get());
  ForEachFloatRun(ropes, elements,
                  [&folder](int64_t offset, int64_t count,
                            absl::Span<const std::byte* const> gradients) {
                    folder.Fold(offset, count, gradients);
                  });
  FoldResult result{.transaction = job.transaction,
                    .partition = job.partition,
                    .gradient_bytes = GradientBytes(job),
                    .nonfinite = folder.nonfinite()};
  if (result.nonfinite.has_value()) return result;
  // Computed here because the weights are still in this core's cache.
  result.checksum = Xxh3(
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(weights->data()),
                          static_cast<size_t>(elements) * sizeof(float)));
  result.weights = std::move(weights);
  result.slots = job.slots;
  if (slot != nullptr) result.slots.*slot = std::move(velocity);
  return result;
}

}  // namespace cohort
