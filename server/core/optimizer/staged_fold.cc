#include "server/core/optimizer/staged_fold.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "common/check.h"

namespace cohort {
namespace {

// Elements of a block: gradient, weights and two slots fit into the
// second-level cache. Sums of squares are made block by block, from where
// their slice begins, so they do not depend on how messages were cut.
constexpr int64_t kBlock = 4096;

// Of the moving mean square of delay compensation.
// Source: Zheng et al., 2017, section 6 (m); epsilon only keeps 0/0 out.
constexpr double kSquareDecay = 0.95;
constexpr double kSquareEpsilon = 1e-7;

// Elements [begin, end) of the partition, all of one slice.
struct Block {
  size_t slice = 0;
  int64_t begin = 0;
  int64_t end = 0;

  int64_t count() const { return end - begin; }
};

std::vector<Block> BlocksOf(const FoldJob& job) {
  std::vector<Block> blocks;
  int64_t begin = 0;
  for (size_t s = 0; s < job.slices.size(); ++s) {
    const int64_t slice_end = begin + job.slices[s].count;
    while (begin < slice_end) {
      const int64_t end = std::min(begin + kBlock, slice_end);
      blocks.push_back({.slice = s, .begin = begin, .end = end});
      begin = end;
    }
  }
  COHORT_CHECK(begin == job.weights->size(), "slices make up the partition");
  return blocks;
}

class StagedFold {
 public:
  StagedFold(const FoldJob& job, const kernels::Backend& backend,
             FloatBufferPool& pool)
      : job_(job), backend_(backend), blocks_(BlocksOf(job)) {
    const int64_t elements = job.weights->size();
    if (folds()) {
      gradient_ = pool.Take(updates() ? kBlock : elements);
      if (compensates() && job.compensation.adaptive) {
        COHORT_CHECK(job.slots.mean_square != nullptr, "no mean square");
        Renew(&Slots::mean_square, elements, pool);
      }
    }
    if (!updates()) {
      norms_.resize(job.slices.size());
      return;
    }
    weights_ = pool.Take(elements);
    if (job.slots.first_moment != nullptr) {
      Renew(&Slots::first_moment, elements, pool);
      Renew(&Slots::second_moment, elements, pool);
    }
    velocity_ = VelocityOf(job.slots);
    if (velocity_ != nullptr) Renew(velocity_, elements, pool);
  }

  FoldResult Run() {
    if (folds()) {
      FoldAll();
    } else {
      for (const Block& block : blocks_) {
        Update(block, job_.gradient->data() + block.begin);
      }
    }
    FoldResult result{.transaction = job_.transaction,
                      .partition = job_.partition,
                      .pass = job_.pass,
                      .gradient_bytes = GradientBytes(job_),
                      .nonfinite = nonfinite_};
    if (nonfinite_.has_value()) return result;
    result.slots = job_.slots;
    for (auto& [buffer, fresh] : fresh_) {
      result.slots.*buffer = std::move(fresh);
    }
    if (!updates()) {
      result.gradient = std::move(gradient_);
      result.norms = std::move(norms_);
      return result;
    }
    for (size_t s = 0; s < result.slots.updates.size(); ++s) {
      if (!job_.slices[s].skip) ++result.slots.updates[s];
    }
    result.checksum = Xxh3(absl::MakeConstSpan(
        reinterpret_cast<const std::byte*>(weights_->data()),
        static_cast<size_t>(weights_->size()) * sizeof(float)));
    result.weights = std::move(weights_);
    return result;
  }

 private:
  bool folds() const { return job_.pass != FoldPass::kUpdate; }
  bool updates() const { return job_.pass != FoldPass::kGradient; }
  bool compensates() const { return job_.compensation.read_weights != nullptr; }

  void Renew(SharedFloats Slots::*buffer, int64_t elements,
             FloatBufferPool& pool) {
    fresh_.emplace_back(buffer, pool.Take(elements));
  }
  FloatBuffer& Fresh(SharedFloats Slots::*buffer) {
    const auto at =
        std::find_if(fresh_.begin(), fresh_.end(),
                     [buffer](const auto& f) { return f.first == buffer; });
    COHORT_CHECK(at != fresh_.end(), "a slot that is moved has a new buffer");
    return *at->second;
  }

  // Where the mean gradient of `block` is made.
  float* GradientOf(const Block& block) {
    return gradient_->data() + (updates() ? 0 : block.begin);
  }

  std::vector<const ByteRope*> Ropes() const {
    std::vector<const ByteRope*> ropes;
    for (const FoldContribution& c : job_.contributions) {
      ropes.push_back(&c.gradient);
    }
    return ropes;
  }

  void FoldAll() {
    auto block = blocks_.begin();
    bool finite = true;
    ForEachFloatRun(
        Ropes(), job_.weights->size(),
        [&](int64_t offset, int64_t count,
            absl::Span<const std::byte* const> gradients) {
          std::vector<const std::byte*> at(gradients.begin(), gradients.end());
          while (count > 0 && !nonfinite_.has_value()) {
            const int64_t run = std::min(count, block->end - offset);
            if (!job_.slices[block->slice].skip) {
              finite &= backend_.FoldGradient(
                  {.gradients = at,
                   .scale = job_.gradient_scale,
                   .count = run,
                   .out = GradientOf(*block) + (offset - block->begin)});
            }
            for (const std::byte*& pointer : at) pointer += run * 4;
            offset += run;
            count -= run;
            if (offset < block->end) continue;
            Finish(*block, finite);
            finite = true;
            ++block;
          }
        });
  }

  // The gradient of `block` is there.
  void Finish(const Block& block, bool finite) {
    float* gradient = GradientOf(block);
    if (job_.slices[block.slice].skip) {
      if (!updates()) std::fill_n(gradient, block.count(), 0.0f);
      for (auto& [buffer, fresh] : fresh_) {
        CopyOver(job_.slots.*buffer, *fresh, block.begin, block.count());
      }
      if (updates()) {
        CopyOver(job_.weights, *weights_, block.begin, block.count());
      }
      return;
    }
    ForEachFrozen(block, [&](int64_t begin, int64_t count) {
      std::fill_n(gradient + (begin - block.begin), count, 0.0f);
    });
    // What is frozen may be anything.
    if (!finite && !AllFinite(gradient, block.count())) {
      Blame(block, Culprit(block));
      return;
    }
    if (compensates() && !Compensate(block, gradient)) {
      Blame(block, OnlyContributor());
      return;
    }
    if (updates()) {
      Update(block, gradient);
    } else {
      AddNorms(block, gradient);
    }
  }

  bool Compensate(const Block& block, float* gradient) {
    const FoldCompensation& c = job_.compensation;
    float* square =
        c.adaptive ? Fresh(&Slots::mean_square).data() + block.begin : nullptr;
    const bool finite = backend_.Compensate(
        {.lambda = static_cast<float>(c.lambda),
         .square_decay = static_cast<float>(kSquareDecay),
         .square_gain = static_cast<float>(1 - kSquareDecay),
         .epsilon = static_cast<float>(kSquareEpsilon)},
        {.gradient = gradient,
         .count = block.count(),
         .weights_now = job_.weights->data() + block.begin,
         .weights_read = c.read_weights->data() + block.begin,
         .square_in = c.adaptive ? job_.slots.mean_square->data() + block.begin
                                 : nullptr,
         .square_out = square});
    if (c.adaptive) {
      PutBack(block, job_.slots.mean_square, Fresh(&Slots::mean_square));
    }
    return finite;
  }

  void Update(const Block& block, const float* gradient) {
    const SliceStep& slice = job_.slices[block.slice];
    if (slice.skip) {
      CopyOver(job_.weights, *weights_, block.begin, block.count());
      for (auto& [buffer, fresh] : fresh_) {
        CopyOver(job_.slots.*buffer, *fresh, block.begin, block.count());
      }
      return;
    }
    if (slice.adam.has_value()) {
      UpdateAdam(block, *slice.adam, gradient);
    } else {
      UpdateSgd(block, slice.step, gradient);
    }
    PutBack(block, job_.weights, *weights_);
    for (auto& [buffer, fresh] : fresh_) {
      PutBack(block, job_.slots.*buffer, *fresh);
    }
  }

  void UpdateAdam(const Block& block, const kernels::AdamStep& step,
                  const float* gradient) {
    backend_.UpdateAdam(
        step,
        {.gradient = gradient,
         .count = block.count(),
         .weights_in = job_.weights->data() + block.begin,
         .weights_out = weights_->data() + block.begin,
         .first_in = job_.slots.first_moment->data() + block.begin,
         .first_out = Fresh(&Slots::first_moment).data() + block.begin,
         .second_in = job_.slots.second_moment->data() + block.begin,
         .second_out = Fresh(&Slots::second_moment).data() + block.begin});
  }

  // The fused kernel with the mean gradient as its only contributor.
  void UpdateSgd(const Block& block, const kernels::SgdStep& step,
                 const float* gradient) {
    const auto* bytes = reinterpret_cast<const std::byte*>(gradient);
    const bool moves = velocity_ != nullptr;
    const bool finite = backend_.FoldSgd(
        step,
        {.gradients = absl::MakeConstSpan(&bytes, 1),
         .count = block.count(),
         .weights_in = job_.weights->data() + block.begin,
         .weights_out = weights_->data() + block.begin,
         .velocity_in =
             moves ? (job_.slots.*velocity_)->data() + block.begin : nullptr,
         .velocity_out =
             moves ? Fresh(velocity_).data() + block.begin : nullptr});
    // The gradient is finite, its multiple need not be.
    if (!finite) Blame(block, OnlyContributor());
  }

  void AddNorms(const Block& block, const float* gradient) {
    const auto count = static_cast<size_t>(block.count());
    SliceNorm& norm = norms_[block.slice];
    norm.gradient +=
        backend_.SumOfSquares(absl::MakeConstSpan(gradient, count));
    if (!job_.weight_norms) return;
    const float* weights = job_.weights->data() + block.begin;
    if (job_.frozen == nullptr) {
      norm.weights +=
          backend_.SumOfSquares(absl::MakeConstSpan(weights, count));
      return;
    }
    std::vector<float> free(weights, weights + count);
    ForEachFrozen(block, [&](int64_t begin, int64_t frozen) {
      std::fill_n(free.data() + (begin - block.begin), frozen, 0.0f);
    });
    norm.weights += backend_.SumOfSquares(free);
  }

  // Calls `body(begin, count)` for the frozen elements of `block`.
  void ForEachFrozen(const Block& block,
                     absl::FunctionRef<void(int64_t, int64_t)> body) const {
    if (job_.frozen == nullptr) return;
    auto run = std::partition_point(
        job_.frozen->begin(), job_.frozen->end(),
        [&](const ElementRun& r) { return r.offset + r.count <= block.begin; });
    for (; run != job_.frozen->end() && run->offset < block.end; ++run) {
      const int64_t begin = std::max(run->offset, block.begin);
      body(begin, std::min(run->offset + run->count, block.end) - begin);
    }
  }

  static void CopyOver(const SharedFloats& from, FloatBuffer& to, int64_t begin,
                       int64_t count) {
    std::copy_n(from->data() + begin, count, to.data() + begin);
  }

  // Frozen elements are updated with the others and then put back: they may
  // be many and far apart, and no kernel has to know of them.
  void PutBack(const Block& block, const SharedFloats& from, FloatBuffer& to) {
    ForEachFrozen(block, [&](int64_t begin, int64_t count) {
      CopyOver(from, to, begin, count);
    });
  }

  static bool AllFinite(const float* values, int64_t count) {
    return std::all_of(values, values + count,
                       [](float value) { return std::isfinite(value); });
  }

  void Blame(const Block& block, std::optional<Rank> rank) {
    if (nonfinite_.has_value()) return;
    nonfinite_ = {.rank = rank,
                  .partition = job_.partition,
                  .slice = static_cast<int32_t>(block.slice)};
  }

  std::optional<Rank> OnlyContributor() const {
    if (job_.contributions.size() != 1) return std::nullopt;
    return job_.contributions.front().rank;
  }

  // The first contributor with a non-finite value in `block` that is not
  // frozen, or none if only the sum is not finite.
  std::optional<Rank> Culprit(const Block& block) const {
    std::vector<bool> frozen(static_cast<size_t>(block.count()));
    ForEachFrozen(block, [&](int64_t begin, int64_t count) {
      std::fill_n(frozen.begin() + (begin - block.begin), count, true);
    });
    size_t first = job_.contributions.size();
    ForEachFloatRun(Ropes(), job_.weights->size(),
                    [&](int64_t offset, int64_t count,
                        absl::Span<const std::byte* const> gradients) {
                      const int64_t begin = std::max(offset, block.begin);
                      const int64_t end = std::min(offset + count, block.end);
                      for (int64_t i = begin; i < end; ++i) {
                        if (frozen[static_cast<size_t>(i - block.begin)])
                          continue;
                        for (size_t k = 0; k < first; ++k) {
                          float value = 0;
                          std::memcpy(&value, gradients[k] + (i - offset) * 4,
                                      sizeof(value));
                          if (!std::isfinite(value)) first = k;
                        }
                      }
                    });
    if (first == job_.contributions.size()) return std::nullopt;
    return job_.contributions[first].rank;
  }

  const FoldJob& job_;
  const kernels::Backend& backend_;
  const std::vector<Block> blocks_;
  // One block, or the whole partition where it is the result.
  std::shared_ptr<FloatBuffer> gradient_;
  std::shared_ptr<FloatBuffer> weights_;
  SharedFloats Slots::*velocity_ = nullptr;
  // Slots that this job moves on.
  std::vector<std::pair<SharedFloats Slots::*, std::shared_ptr<FloatBuffer>>>
      fresh_;
  std::vector<SliceNorm> norms_;
  std::optional<NonfiniteGradient> nonfinite_;
};

}  // namespace

FoldResult RunStagedFold(const FoldJob& job, const kernels::Backend& backend,
                         FloatBufferPool& pool) {
  return StagedFold(job, backend, pool).Run();
}

}  // namespace cohort
