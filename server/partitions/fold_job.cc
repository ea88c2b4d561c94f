#include "server/partitions/fold_job.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/bfloat16.h"
#include "common/check.h"
#include "common/element_type.h"
#include "server/partitions/slice_walker.h"

namespace cohort {
namespace {

// Elements of a block: gradient, weights and two slots fit into the
// second-level cache. Sums of squares are made block by block.
constexpr int64_t kBlockElements = 4096;
// Elements of a partition from which on a model is taken to be larger than the
// caches. Partitions of small models are smaller.
constexpr int64_t kStreamingMin = int64_t{64} << 10;
constexpr int64_t kHalfBytes = BytesOf(ElementType::kBFloat16);

// Decay of the moving mean square for delay compensation.
// Source: Zheng et al., 2017, section 6 (m); epsilon only keeps 0/0 out.
constexpr double kSquareDecay = 0.95;
constexpr double kSquareEpsilon = 1e-7;

// Sums and updates block by block. Where nothing else needs the mean gradient,
// it stays in registers; else it is made in memory that stays in the cache.
class PartitionFold {
 public:
  PartitionFold(const FoldJob& job, const kernels::Backend& backend,
                FloatBufferPool& pool)
      : job_(job),
        backend_(backend),
        pool_(pool),
        block_elements_(fuses() && streams() ? job.weights->size()
                                             : kBlockElements),
        walker_(job, block_elements_) {
    const int64_t elements = job.weights->size();
    if (folds() && compensates() && job.compensation.adaptive) {
      COHORT_CHECK(job.slots.mean_square != nullptr, "no mean square");
      Renew(&Slots::mean_square, elements, pool);
    }
    if (!updates()) {
      norms_.resize(job.slices.size());
      if (measures() || (job.weight_norms && job.frozen != nullptr)) {
        free_ = pool.Take(kBlockElements);
      }
      for (size_t k = 0; measures() && k < kernels::kRuleSlotsMax; ++k) {
        discarded_.push_back(pool.Take(kBlockElements));
      }
      return;
    }
    weights_ = pool.TakeShared(elements);
    for (const SlotKind& kind : SlotsOfRules()) {
      if (job.slots.*kind.buffer != nullptr) Renew(kind.buffer, elements, pool);
    }
    if (job.slots.remainder != nullptr) {
      Renew(&Slots::remainder, elements, pool);
      // Two bfloat16 to a float.
      change_ = pool.Take((elements + 1) / 2);
    }
  }

  FoldResult Run() {
    while (!nonfinite_.has_value() && walker_.Next()) RunBlock();
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
    result.weights = std::move(weights_);
    if (change_ != nullptr) {
      result.change = ByteRope(
          absl::MakeConstSpan(
              ChangeAt(0),
              static_cast<size_t>(result.weights->size() * kHalfBytes)),
          change_);
      result.change_checksum = result.change.Checksum();
    }
    return result;
  }

 private:
  bool folds() const {
    return job_.pass == FoldPass::kWhole || job_.pass == FoldPass::kGradient;
  }
  bool updates() const {
    return job_.pass == FoldPass::kWhole || job_.pass == FoldPass::kUpdate;
  }
  bool measures() const { return job_.pass == FoldPass::kNorms; }
  bool compensates() const { return job_.compensation.read_weights != nullptr; }
  // Whether nothing needs the mean gradient but the rule.
  bool fuses() const { return folds() && updates() && !compensates(); }
  // Whether what an update writes is not read again in this fold.
  bool streams() const {
    return updates() && job_.frozen == nullptr &&
           job_.slots.remainder == nullptr &&
           job_.weights->size() >= kStreamingMin;
  }

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

  void RunBlock() {
    const SliceBlock& block = walker_.block();
    if (walker_.step().skip) {
      Keep(block);
      return;
    }
    if (fuses() && FoldAndUpdate(block)) return;
    const float* gradient =
        folds() ? FoldGradient(block) : job_.gradient->data() + block.begin;
    if (nonfinite_.has_value()) return;
    if (updates()) {
      UpdateByRule(block, gradient);
      FinishUpdate(block);
    } else if (measures()) {
      AddUpdateNorms(block, gradient);
    } else {
      AddNorms(block, gradient);
    }
  }

  // Where the mean gradient of `block` is made.
  float* GradientOf(const SliceBlock& block) {
    if (gradient_ == nullptr) {
      gradient_ =
          pool_.Take(updates() ? block_elements_ : job_.weights->size());
    }
    return gradient_->data() + (updates() ? 0 : block.begin);
  }

  void Keep(const SliceBlock& block) {
    if (updates()) {
      CopyOver(job_.weights, *weights_, block.begin, block.count());
      KeepUnchanged(block.begin, block.count());
    } else if (folds()) {
      std::fill_n(GradientOf(block), block.count(), 0.0f);
    }
    for (auto& [buffer, fresh] : fresh_) {
      CopyOver(job_.slots.*buffer, *fresh, block.begin, block.count());
    }
  }

  // The compensated mean gradient of `block`, frozen elements 0.
  const float* FoldGradient(const SliceBlock& block) {
    float* gradient = GradientOf(block);
    bool finite = true;
    walker_.ForEachRun([&](int64_t begin, int64_t count,
                           absl::Span<const std::byte* const> gradients) {
      finite &=
          backend_.FoldGradient({.gradients = gradients,
                                 .scale = job_.gradient_scale,
                                 .count = count,
                                 .out = gradient + (begin - block.begin)});
      return true;
    });
    walker_.ForEachFrozen([&](int64_t begin, int64_t count) {
      std::fill_n(gradient + (begin - block.begin), count, 0.0f);
    });
    // Frozen elements may have any value.
    if (!finite && !AllFinite(gradient, block.count())) {
      Blame(block, walker_.NonfiniteRank());
    } else if (compensates() && !Compensate(block, gradient)) {
      Blame(block, OnlyContributor());
    }
    return gradient;
  }

  bool Compensate(const SliceBlock& block, float* gradient) {
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
      PutBack(job_.slots.mean_square, Fresh(&Slots::mean_square));
    }
    return finite;
  }

  // In one pass over the gradients. False: the mean of some element is not
  // finite, perhaps of a frozen one, and nothing of `block` is valid.
  bool FoldAndUpdate(const SliceBlock& block) {
    bool finite = true;
    walker_.ForEachRun([&](int64_t begin, int64_t count,
                           absl::Span<const std::byte* const> gradients) {
      finite = UpdateByRule(begin, {.gradients = gradients,
                                    .scale = job_.gradient_scale,
                                    .count = count});
      return finite;
    });
    if (finite) FinishUpdate(block);
    return finite;
  }

  void FinishUpdate(const SliceBlock& block) {
    RoundChange(block);
    PutBack(job_.weights, *weights_);
    for (auto& [buffer, fresh] : fresh_) {
      PutBack(job_.slots.*buffer, *fresh);
    }
  }

  std::byte* ChangeAt(int64_t element) {
    return reinterpret_cast<std::byte*>(change_->data()) + element * kHalfBytes;
  }

  // Replaces what the optimizer made of the weights of `block`.
  void RoundChange(const SliceBlock& block) {
    if (change_ == nullptr) return;
    backend_.RoundChange(
        {.count = block.count(),
         .weights_in = job_.weights->data() + block.begin,
         .weights = weights_->data() + block.begin,
         .remainder_in = job_.slots.remainder->data() + block.begin,
         .remainder_out = Fresh(&Slots::remainder).data() + block.begin,
         .change = ChangeAt(block.begin)});
    walker_.ForEachFrozen(
        [&](int64_t begin, int64_t count) { KeepUnchanged(begin, count); });
  }

  // Writes changes of -0, which leave every weight as it is, -0 too.
  void KeepUnchanged(int64_t begin, int64_t count) {
    if (change_ == nullptr) return;
    const uint16_t minus_zero = BFloat16Bits(-0.0f);
    for (int64_t i = begin; i < begin + count; ++i) {
      std::memcpy(ChangeAt(i), &minus_zero, sizeof(minus_zero));
    }
  }

  void UpdateByRule(const SliceBlock& block, const float* gradient) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(gradient);
    UpdateByRule(block.begin, {.gradients = absl::MakeConstSpan(&bytes, 1),
                               .count = block.count()});
  }

  // Updates the elements from `begin` on. False: their mean is not finite.
  bool UpdateByRule(int64_t begin, const kernels::GradientRun& gradient) {
    const kernels::RuleStep& step = walker_.step().rule;
    kernels::UpdateRun run{
        .weights_in = job_.weights->data() + begin,
        .weights_out = measures() ? free_->data() : weights_->data() + begin,
        .streaming = streams()};
    const std::vector<SlotKind>& slots = SlotsOfRule(step.rule);
    for (size_t k = 0; k < slots.size(); ++k) {
      const SharedFloats& before = job_.slots.*slots[k].buffer;
      if (before == nullptr) continue;
      run.slots_in[k] = before->data() + begin;
      run.slots_out[k] = measures() ? discarded_[k]->data()
                                    : Fresh(slots[k].buffer).data() + begin;
    }
    return backend_.Update(step, gradient, run);
  }

  void AddNorms(const SliceBlock& block, const float* gradient) {
    const auto count = static_cast<size_t>(block.count());
    SliceNorm& norm = norms_[block.slice];
    norm.gradient +=
        backend_.SumOfSquares(absl::MakeConstSpan(gradient, count));
    if (job_.weight_norms) AddWeightNorms(block);
  }

  // The slots go nowhere: the last pass moves them.
  void AddUpdateNorms(const SliceBlock& block, const float* gradient) {
    UpdateByRule(block, gradient);
    const double squares = FreeSquares(block);
    norms_[block.slice].gradient += squares;
    AddWeightNorms(block);
    // The gradient is finite, but weights and their decay need not be.
    if (!std::isfinite(squares)) Blame(block, std::nullopt);
  }

  void AddWeightNorms(const SliceBlock& block) {
    const float* weights = job_.weights->data() + block.begin;
    if (job_.frozen == nullptr) {
      norms_[block.slice].weights += backend_.SumOfSquares(
          absl::MakeConstSpan(weights, static_cast<size_t>(block.count())));
      return;
    }
    std::copy_n(weights, block.count(), free_->data());
    norms_[block.slice].weights += FreeSquares(block);
  }

  // The sum of squares of the values of `block` that are not frozen.
  double FreeSquares(const SliceBlock& block) {
    walker_.ForEachFrozen([&](int64_t begin, int64_t frozen) {
      std::fill_n(free_->data() + (begin - block.begin), frozen, 0.0f);
    });
    return backend_.SumOfSquares(
        absl::MakeConstSpan(free_->data(), static_cast<size_t>(block.count())));
  }

  static void CopyOver(const SharedFloats& from, FloatBuffer& to, int64_t begin,
                       int64_t count) {
    std::copy_n(from->data() + begin, count, to.data() + begin);
  }

  // Frozen elements are updated with the others and then put back: they may
  // be many and far apart, and no kernel has to know of them.
  void PutBack(const SharedFloats& from, FloatBuffer& to) {
    walker_.ForEachFrozen([&](int64_t begin, int64_t count) {
      CopyOver(from, to, begin, count);
    });
  }

  static bool AllFinite(const float* values, int64_t count) {
    return std::all_of(values, values + count,
                       [](float value) { return std::isfinite(value); });
  }

  void Blame(const SliceBlock& block, std::optional<Rank> rank) {
    if (nonfinite_.has_value()) return;
    nonfinite_ = {.rank = rank,
                  .partition = job_.partition,
                  .slice = static_cast<int32_t>(block.slice)};
  }

  std::optional<Rank> OnlyContributor() const {
    if (job_.contributions.size() != 1) return std::nullopt;
    return job_.contributions.front().rank;
  }

  const FoldJob& job_;
  const kernels::Backend& backend_;
  FloatBufferPool& pool_;
  // The whole partition where results are streamed: each block ends by waiting
  // for the last stores, which took a fifth of the time.
  const int64_t block_elements_;
  SliceWalker walker_;
  // One block, or the whole partition where it is the result. Null: not needed
  // yet.
  std::shared_ptr<FloatBuffer> gradient_;
  std::shared_ptr<FloatBuffer> weights_;
  // Slots that this job moves on.
  std::vector<std::pair<SharedFloats Slots::*, std::shared_ptr<FloatBuffer>>>
      fresh_;
  // Null: changes are not rounded.
  std::shared_ptr<FloatBuffer> change_;
  std::vector<SliceNorm> norms_;
  // One block of updates or weights, frozen ones 0, and of each slot that pass
  // kNorms makes. Null: no norms need it.
  std::shared_ptr<FloatBuffer> free_;
  std::vector<std::shared_ptr<FloatBuffer>> discarded_;
  std::optional<NonfiniteGradient> nonfinite_;
};

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
  FoldResult result = PartitionFold(job, backend, pool).Run();
  if (result.weights != nullptr && job.slots.average != nullptr) {
    result.slots.average =
        Followed(*job.slots.average, *result.weights, job.average_gain, pool);
  }
  return result;
}

}  // namespace cohort
