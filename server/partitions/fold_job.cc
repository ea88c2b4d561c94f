#include "server/partitions/fold_job.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "server/partitions/slice_walker.h"
#include "server/partitions/staged_fold.h"

namespace cohort {
namespace {

// Elements of a partition from which on a model is taken to be larger than the
// caches. Partitions of small models are smaller.
constexpr int64_t kStreamingMin = int64_t{64} << 10;

// Gradients, weights and velocities in one pass of the fused kernel.
class Folder {
 public:
  Folder(const FoldJob& job, const kernels::Backend& backend,
         FloatBufferPool& pool)
      : job_(job),
        backend_(backend),
        walker_(job, job.weights->size()),
        slot_(VelocityOf(job.slots)),
        weights_(pool.TakeShared(job.weights->size())) {
    if (slot_ != nullptr) velocity_ = pool.Take(job.weights->size());
  }

  FoldResult Run() {
    while (!nonfinite_.has_value() && walker_.Next()) FoldBlock();
    FoldResult result{.transaction = job_.transaction,
                      .partition = job_.partition,
                      .gradient_bytes = GradientBytes(job_),
                      .nonfinite = nonfinite_};
    if (result.nonfinite.has_value()) return result;
    result.weights = std::move(weights_);
    result.slots = job_.slots;
    if (slot_ != nullptr) result.slots.*slot_ = std::move(velocity_);
    return result;
  }

 private:
  void FoldBlock() {
    const SliceBlock& block = walker_.block();
    const SliceStep& slice = walker_.step();
    if (slice.skip) {
      Keep(block);
      return;
    }
    kernels::SgdStep step = slice.step;
    step.gradient_scale *= job_.gradient_scale;
    bool finite = true;
    walker_.ForEachRun([&](int64_t begin, int64_t count,
                           absl::Span<const std::byte* const> gradients) {
      finite = backend_.FoldSgd(step, RunAt(begin, count, gradients));
      return finite;
    });
    if (finite) return;
    nonfinite_ = {.rank = walker_.NonfiniteRank(),
                  .partition = job_.partition,
                  .slice = static_cast<int32_t>(block.slice)};
  }

  void Keep(const SliceBlock& block) {
    std::copy_n(job_.weights->data() + block.begin, block.count(),
                weights_->data() + block.begin);
    if (slot_ == nullptr) return;
    std::copy_n((job_.slots.*slot_)->data() + block.begin, block.count(),
                velocity_->data() + block.begin);
  }

  kernels::SgdRun RunAt(int64_t begin, int64_t count,
                        absl::Span<const std::byte* const> gradients) {
    kernels::SgdRun run{.gradients = gradients,
                        .count = count,
                        .weights_in = job_.weights->data() + begin,
                        .weights_out = weights_->data() + begin,
                        .streaming = weights_->size() >= kStreamingMin};
    if (slot_ != nullptr) {
      run.velocity_in = (job_.slots.*slot_)->data() + begin;
      run.velocity_out = velocity_->data() + begin;
    }
    return run;
  }

  const FoldJob& job_;
  const kernels::Backend& backend_;
  SliceWalker walker_;
  // Null: the job moves no velocity.
  SharedFloats Slots::*const slot_;
  std::shared_ptr<FloatBuffer> weights_;
  std::shared_ptr<FloatBuffer> velocity_;
  std::optional<NonfiniteGradient> nonfinite_;
};

bool IsStaged(const FoldJob& job) {
  return job.pass != FoldPass::kWhole || job.frozen != nullptr ||
         job.compensation.read_weights != nullptr ||
         job.slots.remainder != nullptr ||
         std::any_of(
             job.slices.begin(), job.slices.end(),
             [](const SliceStep& slice) { return slice.rule.has_value(); });
}

// `average` moved towards `weights`. Equal values stay bitwise identical, so
// frozen weights do.
SharedFloats Followed(const FloatBuffer& average, const FloatBuffer& weights,
                      float gain, FloatBufferPool& pool) {
  auto next = pool.Take(average.size());
  for (int64_t i = 0; i < average.size(); ++i) {
    const float before = average.data()[i];
    next->data()[i] = before + gain * (weights.data()[i] - before);
  }
  return next;
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
  FoldResult result = IsStaged(job) ? RunStagedFold(job, backend, pool)
                                    : Folder(job, backend, pool).Run();
  if (result.weights != nullptr && job.slots.average != nullptr) {
    result.slots.average =
        Followed(*job.slots.average, *result.weights, job.average_gain, pool);
  }
  return result;
}

}  // namespace cohort
