#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/byte_rope.h"
#include "common/float_buffer.h"
#include "kernels/backend.h"
#include "kernels/optimizer_rules.h"
#include "server/partitions/fold_job.h"
#include "tests/bench/kernel_bench.h"
#include "tests/bench/tcp_baseline.h"

namespace cohort::bench {
namespace {

double SecondsOf(clockid_t clock) {
  timespec now = {};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) +
         static_cast<double>(now.tv_nsec) / 1e9;
}

// Elements of a partition.
constexpr int64_t kPartition = 1 << 18;
// 17 pieces a MiB, as seen in a server under cohort_bench.py --table=exchange:
// frames of 64 KiB, and a shorter piece where gRPC began to read. Its length is
// odd, so that every boundary after it cuts a float in two.
constexpr int64_t kFirstPieceBytes = 32'259;
constexpr int64_t kPieceBytes = 65'536;

SharedFloats Filled(int64_t elements, float value) {
  auto buffer = std::make_shared<FloatBuffer>(elements);
  std::fill_n(buffer->data(), elements, value);
  return buffer;
}

// Copies, because the network gives each piece separate memory.
ByteRope InPieces(const SharedFloats& floats) {
  const ByteRope whole = RopeOf(floats);
  absl::Span<const std::byte> left = whole.pieces()[0].bytes;
  ByteRope rope;
  for (int64_t size = kFirstPieceBytes; !left.empty(); size = kPieceBytes) {
    const ByteRope copy =
        ByteRope::Copy(left.subspan(0, static_cast<size_t>(size)));
    const ByteRope::Piece& piece = copy.pieces()[0];
    rope.Append(piece.bytes, piece.owner);
    left.remove_prefix(piece.bytes.size());
  }
  return rope;
}

SliceStep StepOf(OptimizerKind rule, int64_t elements) {
  return {.count = elements,
          .rule = kernels::RuleOf(rule).step(
              {.numbers = {}, .rate = 1e-3, .decay = 1e-4})};
}

// Weights and slots of a partition.
struct State {
  SharedFloats weights;
  Slots slots;
};

State FirstState(OptimizerKind rule, int64_t elements) {
  State state{.weights = Filled(elements, 1)};
  if (rule == OptimizerKind::kMomentum) {
    state.slots.velocity = Filled(elements, 0.1F);
  } else if (rule == OptimizerKind::kAdam) {
    state.slots.first_moment = Filled(elements, 0.1F);
    state.slots.second_moment = Filled(elements, 0.1F);
    state.slots.updates = {0};
  }
  return state;
}

std::vector<SharedFloats> ArraysOf(const State& state) {
  std::vector<SharedFloats> arrays;
  for (const SharedFloats& array :
       {state.weights, state.slots.velocity, state.slots.first_moment,
        state.slots.second_moment}) {
    if (array != nullptr) arrays.push_back(array);
  }
  return arrays;
}

class FoldedModel {
 public:
  explicit FoldedModel(const FoldSetup& setup) {
    for (int64_t begin = 0; begin < setup.elements; begin += kPartition) {
      AddPartition(setup, std::min(kPartition, setup.elements - begin));
    }
    after_.resize(before_.size());
  }

  void FoldWhole() { Fold(whole_); }
  void FoldPieces() { Fold(pieces_); }

  void Sweep() {
    for (size_t p = 0; p < before_.size(); ++p) {
      for (const SharedFloats& gradient : gradients_[p]) Read(*gradient);
      for (const SharedFloats& array : ArraysOf(before_[p])) Read(*array);
      for (const auto& array : swept_[p]) {
        std::memset(array->data(), 1, sizeof(float) * array->span().size());
      }
    }
  }

 private:
  void AddPartition(const FoldSetup& setup, int64_t elements) {
    before_.push_back(FirstState(setup.rule, elements));
    swept_.emplace_back();
    for (const SharedFloats& array : ArraysOf(before_.back())) {
      swept_.back().push_back(std::make_shared<FloatBuffer>(array->size()));
    }
    FoldJob whole{.partition = static_cast<int32_t>(whole_.size()),
                  .gradient_scale = 0.5F,
                  .slices = {StepOf(setup.rule, elements)}};
    FoldJob pieces = whole;
    gradients_.emplace_back();
    for (int32_t k = 0; k < setup.contributors; ++k) {
      const SharedFloats gradient = Filled(elements, 0.01F);
      whole.contributions.push_back(
          {.rank = Rank(k), .gradient = RopeOf(gradient)});
      pieces.contributions.push_back(
          {.rank = Rank(k), .gradient = InPieces(gradient)});
      gradients_.back().push_back(gradient);
    }
    whole_.push_back(std::move(whole));
    pieces_.push_back(std::move(pieces));
  }

  // One version. The one before it stays until the next, as in the server;
  // otherwise each fold would write to memory that is still in the cache.
  void Fold(std::vector<FoldJob>& jobs) {
    for (size_t p = 0; p < jobs.size(); ++p) {
      FoldJob& job = jobs[p];
      job.weights = before_[p].weights;
      job.slots = before_[p].slots;
      FoldResult result = RunFold(job, kernels::CpuBackend(), pool_);
      after_[p] = {.weights = std::move(result.weights),
                   .slots = std::move(result.slots)};
      job.weights = nullptr;
      job.slots = {};
    }
    before_.swap(after_);
  }

  // By a kernel: how fast a plain loop is depends on where its code lies.
  void Read(const FloatBuffer& from) {
    squares_ += kernels::CpuBackend().SumOfSquares(from.span());
  }

  FloatBufferPool pool_;
  // All by partition.
  std::vector<FoldJob> whole_;
  std::vector<FoldJob> pieces_;
  std::vector<std::vector<SharedFloats>> gradients_;
  std::vector<State> before_;
  std::vector<State> after_;
  // Buffers that the sweep writes to.
  std::vector<std::vector<std::shared_ptr<FloatBuffer>>> swept_;
  // Combines everything that the sweep has read.
  double squares_ = 0;
};

}  // namespace

double ThreadSeconds() { return SecondsOf(CLOCK_THREAD_CPUTIME_ID); }
double ProcessSeconds() { return SecondsOf(CLOCK_PROCESS_CPUTIME_ID); }

FoldTimes TimeFold(const FoldSetup& setup, int32_t rounds) {
  FoldedModel model(setup);
  std::vector<double> whole;
  std::vector<double> pieces;
  std::vector<double> sweep;
  // The first round, which is not counted, maps the memory.
  for (int32_t round = 0; round <= rounds; ++round) {
    const double start = ThreadSeconds();
    model.FoldWhole();
    const double folded_whole = ThreadSeconds();
    model.FoldPieces();
    const double folded_pieces = ThreadSeconds();
    model.Sweep();
    const double swept = ThreadSeconds();
    if (round == 0) continue;
    whole.push_back(folded_whole - start);
    pieces.push_back(folded_pieces - folded_whole);
    sweep.push_back(swept - folded_pieces);
  }
  return {.whole = Quantile(whole, 0.5),
          .pieces = Quantile(pieces, 0.5),
          .sweep = Quantile(sweep, 0.5)};
}

}  // namespace cohort::bench
