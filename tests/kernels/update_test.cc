#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/bfloat16.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"
#include "kernels/backend.h"
#include "kernels/optimizer_rules.h"
#include "tests/kernels/backend_matrix.h"
#include "tests/kernels/reference/optimizer_oracle.h"
#include "tests/kernels/reference/reference_backend.h"
#include "tests/kernels/sample_data.h"

namespace cohort::kernels {
namespace {

using Floats = std::vector<float>;

constexpr int64_t kUpdateCounts[] = {0,  1,  7,  8,    9,     31,
                                     32, 33, 65, 4096, 100003};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Gradients as they lie in received slices: at any byte.
class ByteGradients {
 public:
  explicit ByteGradients(const std::vector<Floats>& gradients,
                         size_t offset_bytes = 0) {
    for (const Floats& gradient : gradients) {
      // Exactly as long as needed, so that a sanitizer sees a read beyond it.
      const size_t gradient_bytes = gradient.size() * sizeof(float);
      std::vector<std::byte> bytes(offset_bytes + gradient_bytes);
      if (gradient_bytes > 0) {
        std::memcpy(bytes.data() + offset_bytes, gradient.data(),
                    gradient_bytes);
      }
      storage_.push_back(std::move(bytes));
      pointers_.push_back(storage_.back().data() + offset_bytes);
    }
  }

  absl::Span<const std::byte* const> pointers() const { return pointers_; }

 private:
  std::vector<std::vector<std::byte>> storage_;
  std::vector<const std::byte*> pointers_;
};

struct Folded {
  bool finite = false;
  Floats mean;

  friend bool operator==(const Folded&, const Folded&) = default;
};

Folded Fold(const Backend& backend, const std::vector<Floats>& gradients,
            float scale = 1, size_t offset_bytes = 0) {
  const ByteGradients bytes(gradients, offset_bytes);
  const size_t count = gradients.empty() ? 3 : gradients.front().size();
  Folded folded{.mean = Floats(count)};
  folded.finite = backend.FoldGradient({.gradients = bytes.pointers(),
                                        .scale = scale,
                                        .count = static_cast<int64_t>(count),
                                        .out = folded.mean.data()});
  return folded;
}

std::vector<Floats> RandomGradients(int64_t count, int contributors) {
  Numbers numbers(static_cast<uint64_t>(count * 31 + contributors));
  std::vector<Floats> gradients;
  for (int k = 0; k < contributors; ++k) {
    gradients.push_back(numbers.Take<float>(count));
  }
  return gradients;
}

class UpdateTest : public BackendTest {};

TEST_P(UpdateTest, NameTellsTheInstructionSet) {
  EXPECT_EQ(backend().name(), GetParam().name);
}

// ---- FoldGradient

// Server and replay may run on different machines: bits must not differ.
TEST_P(UpdateTest, TheGradientIsTheRoundedSumOfFloat64) {
  for (int64_t count : kUpdateCounts) {
    // Eight are read side by side.
    for (int contributors : {1, 2, 8, 9, 17}) {
      const auto gradients = RandomGradients(count, contributors);
      const Folded folded = Fold(backend(), gradients, 0.7f);
      EXPECT_TRUE(folded.finite);
      Floats wanted;
      for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
        double sum = 0;
        for (const Floats& gradient : gradients) sum += gradient[i];
        wanted.push_back(0.7f * static_cast<float>(sum));
      }
      EXPECT_TRUE(folded.mean == wanted) << count << ", " << contributors;
    }
  }
}

TEST_P(UpdateTest, GradientsAreReadAtAnyByte) {
  const auto gradients = RandomGradients(1001, 3);
  const Folded aligned = Fold(backend(), gradients);
  for (size_t offset_bytes : {1, 2, 3, 4, 7}) {
    EXPECT_TRUE(Fold(backend(), gradients, 1, offset_bytes) == aligned)
        << offset_bytes;
  }
}

// One after another: 2^30 + 1 needs more than float32's 24 bits, 2^60 + 1 more
// than float64's 53.
TEST_P(UpdateTest, GradientsAreAddedInContributorOrder) {
  constexpr float kBig = 0x1p30f;
  constexpr float kHuge = 0x1p60f;
  EXPECT_EQ(Fold(backend(),
                 {{kBig, kHuge, kHuge}, {1, 1, -kHuge}, {-kBig, -kHuge, 1}})
                .mean,
            (Floats{1, 0, 1}));
  EXPECT_EQ(Fold(backend(), {}).mean, (Floats{0, 0, 0}));
}

// Every contribution is finite, but their sum in float32 need not be.
TEST_P(UpdateTest, AnOverflowOfTheSumIsReported) {
  for (size_t position : {0, 66}) {
    std::vector<Floats> gradients = RandomGradients(67, 3);
    gradients[0][position] = gradients[1][position] = 3e38f;
    EXPECT_FALSE(Fold(backend(), gradients).finite) << position;
    gradients[2][position] = -3.2e38f;
    EXPECT_TRUE(Fold(backend(), gradients).finite) << position;
  }
}

TEST_P(UpdateTest, TheGradientIsWholeEvenWhereItIsNotFinite) {
  for (size_t position = 0; position < 67; ++position) {
    for (size_t contributor : {0, 8}) {
      std::vector<Floats> gradients(9, Floats(67, 1));
      gradients[contributor][position] = kInfinity;
      const Folded folded = Fold(backend(), gradients);
      EXPECT_FALSE(folded.finite);
      Floats wanted(67, 9);
      wanted[position] = kInfinity;
      EXPECT_EQ(folded.mean, wanted);
    }
  }
  EXPECT_FALSE(Fold(backend(), {{1, NAN, 1}}).finite);
}

// ---- SumOfSquares

TEST_P(UpdateTest, SquaresAreSummedInFloat64) {
  for (int64_t count : kUpdateCounts) {
    const Floats x = Numbers(static_cast<uint64_t>(count)).Take<float>(count);
    double wanted = 0;
    for (float value : x) wanted += static_cast<double>(value) * value;
    // Float64 rounding of `count` terms in another order.
    EXPECT_NEAR(backend().SumOfSquares(x), wanted,
                static_cast<double>(count) * 0x1p-53 * wanted);
    // Bits: those of every other machine.
    EXPECT_EQ(backend().SumOfSquares(x), ReferenceBackend().SumOfSquares(x));
  }
}

TEST_P(UpdateTest, SquaresBeyondFloat32AreThere) {
  const Floats x(100, 1e30f);
  const double one = static_cast<double>(1e30f) * 1e30f;
  EXPECT_DOUBLE_EQ(backend().SumOfSquares(x), 100 * one);
}

// ---- Update

struct RuleState {
  Floats gradient;
  Floats weights;
  std::vector<Floats> slots;

  friend bool operator==(const RuleState&, const RuleState&) = default;
};

// A rule with some of its numbers.
struct RuleCase {
  OptimizerCase optimizer;
  const OptimizerRule& rule;

  bool Keeps(size_t slot) const {
    return rule.slots[slot].kept == nullptr ||
           rule.slots[slot].kept(optimizer.numbers);
  }
  OracleStep Oracle() const {
    return {.kind = rule.kind,
            .numbers = optimizer.numbers,
            .rate = 0.01,
            .decay = 0.02,
            .update = 3};
  }
  RuleStep Step() const {
    const OracleStep step = Oracle();
    return rule.step({.numbers = optimizer.numbers,
                      .rate = step.rate,
                      .decay = step.decay,
                      .gradient_scale = 0.7,
                      .update = static_cast<int64_t>(step.update)});
  }
};

std::vector<RuleCase> RuleCases() {
  std::vector<RuleCase> cases;
  for (const OptimizerCase& optimizer : OptimizerCases()) {
    cases.push_back({optimizer, RuleOf(optimizer.kind)});
  }
  return cases;
}

// Slots of numbers that the rules can come to: none is below 0, and each mean
// of squares is above the square of the mean.
RuleState RandomState(const RuleCase& c, int64_t count) {
  Numbers numbers(static_cast<uint64_t>(count + 1));
  RuleState state{.gradient = numbers.Take<float>(count),
                  .weights = numbers.Take<float>(count),
                  .slots = {}};
  for (size_t k = 0; k < c.rule.slots.size(); ++k) {
    Floats& slot = state.slots.emplace_back();
    if (!c.Keeps(k)) continue;
    slot = numbers.Take<float>(count);
    for (float& v : slot) v = std::abs(v) * 0.25f + (k < 2 ? 0.5f : 0);
  }
  return state;
}

// Results begin at these elements of `out`.
UpdateRun RunOf(const RuleCase& c, const RuleState& in, RuleState& out,
                size_t of_weights = 0, size_t of_slots = 0) {
  UpdateRun run{.weights_in = in.weights.data(),
                .weights_out = out.weights.data() + of_weights};
  for (size_t k = 0; k < c.rule.slots.size(); ++k) {
    if (!c.Keeps(k)) continue;
    run.slots_in[k] = in.slots[k].data();
    run.slots_out[k] = out.slots[k].data() + of_slots;
  }
  return run;
}

bool UpdateFrom(const Backend& backend, const RuleCase& c,
                const std::vector<Floats>& gradients, float scale,
                const UpdateRun& run) {
  const ByteGradients bytes(gradients, 1);
  return backend.Update(
      c.Step(),
      {.gradients = bytes.pointers(),
       .scale = scale,
       .count = static_cast<int64_t>(gradients.front().size())},
      run);
}

void Update(const Backend& backend, const RuleCase& c, const RuleState& in,
            RuleState& out) {
  EXPECT_TRUE(UpdateFrom(backend, c, {in.gradient}, 1, RunOf(c, in, out)));
}

RuleState Updated(const Backend& backend, const RuleCase& c,
                  const RuleState& in) {
  RuleState out = in;
  Update(backend, c, in, out);
  return out;
}

// Tolerance: a slot is rounded six times, the weight twelve, each time by 2^-24
// of a value below 4.
TEST_P(UpdateTest, RulesFollowTheirFormulas) {
  constexpr double kTolerance = 12 * 4 * 0x1p-24;
  for (const RuleCase& c : RuleCases()) {
    for (int64_t count : kUpdateCounts) {
      const RuleState in = RandomState(c, count);
      const RuleState out = Updated(backend(), c, in);
      int64_t wrong = 0;
      for (size_t i = 0; i < in.weights.size(); ++i) {
        OracleElement element{.weight = in.weights[i]};
        for (size_t k = 0; k < in.slots.size(); ++k) {
          if (c.Keeps(k)) element.state[k] = in.slots[k][i];
        }
        OracleUpdate(c.Oracle(), 0.7 * in.gradient[i], element);
        for (size_t k = 0; k < in.slots.size(); ++k) {
          if (!c.Keeps(k)) continue;
          const double off = out.slots[k][i] - element.state[k];
          if (!(std::abs(off) <= kTolerance)) ++wrong;
        }
        const double off = out.weights[i] - element.weight;
        if (!(std::abs(off) <= kTolerance)) ++wrong;
      }
      EXPECT_EQ(wrong, 0) << "of " << count << " " << c.optimizer.name();
    }
  }
}

TEST_P(UpdateTest, RulesHaveTheSameBitsEverywhere) {
  for (const RuleCase& c : RuleCases()) {
    for (int64_t count : kUpdateCounts) {
      const RuleState in = RandomState(c, count);
      const RuleState out = Updated(backend(), c, in);
      EXPECT_TRUE(out == Updated(ReferenceBackend(), c, in)) << count;
      EXPECT_TRUE(out == Updated(backend(), c, in)) << count;
      // The last is the one without vectors.
      hwy::SetSupportedTargetsForTest(
          hwy::SupportedAndGeneratedTargets().back());
      EXPECT_TRUE(out == Updated(CpuBackend(), c, in)) << count;
      hwy::SetSupportedTargetsForTest(GetParam().instruction_set);
    }
  }
}

// Sum and update in one pass, and one after the other.
TEST_P(UpdateTest, RulesTakeTheMeanThatTheFoldMakes) {
  for (const RuleCase& c : RuleCases()) {
    for (int64_t count : {7, 33, 4096 + 5}) {
      for (int contributors : {2, 9}) {
        const auto gradients = RandomGradients(count, contributors);
        RuleState in = RandomState(c, count);
        in.gradient = Fold(backend(), gradients, 0.7f).mean;
        RuleState out = in;
        UpdateRun run = RunOf(c, in, out);
        run.streaming = true;
        EXPECT_TRUE(UpdateFrom(backend(), c, gradients, 0.7f, run));
        EXPECT_TRUE(out == Updated(backend(), c, in))
            << c.optimizer.name() << ", " << count << ", " << contributors;
      }
    }
  }
}

TEST_P(UpdateTest, AMeanThatIsNotFiniteIsReported) {
  const RuleCase c = RuleCases().front();
  for (size_t position = 0; position < 67; ++position) {
    std::vector<Floats> gradients(9, Floats(67, 1));
    gradients[position % 9][position] = position % 2 == 0 ? kInfinity : NAN;
    RuleState state = RandomState(c, 67);
    EXPECT_FALSE(UpdateFrom(backend(), c, gradients, 1, RunOf(c, state, state)))
        << position;
  }
}

TEST_P(UpdateTest, OutputsOfRulesMayBeTheirInputs) {
  for (const RuleCase& c : RuleCases()) {
    const RuleState in = RandomState(c, 1001);
    RuleState state = in;
    Update(backend(), c, state, state);
    EXPECT_TRUE(state == Updated(backend(), c, in)) << c.optimizer.name();
  }
}

// From 64 Ki elements on, results pass the caches by, where all are aligned
// alike.
TEST_P(UpdateTest, ResultsAreStreamedToAnyElement) {
  constexpr size_t kCount = 2048 + 5;
  for (const RuleCase& c : RuleCases()) {
    const RuleState in = RandomState(c, kCount);
    const RuleState want = Updated(backend(), c, in);
    for (const auto& [of_weights, of_slots] :
         {std::pair<size_t, size_t>(0, 0), {1, 1}, {15, 15}, {0, 1}}) {
      RuleState out = in;
      out.weights.assign(kCount + 32, -1);
      for (Floats& slot : out.slots) slot.assign(kCount + 32, -1);
      UpdateRun run = RunOf(c, in, out, of_weights, of_slots);
      run.streaming = true;
      EXPECT_TRUE(UpdateFrom(backend(), c, {in.gradient}, 1, run));
      const auto holds = [](const Floats& all, size_t begin,
                            const Floats& values) {
        const auto at = all.begin() + static_cast<ptrdiff_t>(begin);
        return std::equal(values.begin(), values.end(), at) &&
               std::count(all.begin(), at, -1) == at - all.begin() &&
               std::count(at + kCount, all.end(), -1) ==
                   all.end() - (at + kCount);
      };
      EXPECT_TRUE(holds(out.weights, of_weights, want.weights))
          << c.optimizer.name();
      for (size_t k = 0; k < c.rule.slots.size(); ++k) {
        if (!c.Keeps(k)) continue;
        EXPECT_TRUE(holds(out.slots[k], of_slots, want.slots[k]))
            << c.optimizer.name();
      }
    }
  }
}

// ---- Compensate

struct CompensationState {
  Floats gradient;
  Floats now;
  Floats read;
  Floats square;
  bool finite = false;

  friend bool operator==(const CompensationState&,
                         const CompensationState&) = default;
};

CompensationState RandomCompensation(int64_t count) {
  Numbers numbers(static_cast<uint64_t>(count + 2));
  CompensationState state{.gradient = numbers.Take<float>(count),
                          .now = numbers.Take<float>(count),
                          .read = numbers.Take<float>(count),
                          .square = numbers.Take<float>(count)};
  for (float& s : state.square) s = std::abs(s);
  return state;
}

constexpr CompensationStep kCompensation = {.lambda = 0.5f,
                                            .square_decay = 0.95f,
                                            .square_gain = 0.05f,
                                            .epsilon = 1e-3f};

CompensationState Compensate(const Backend& backend, bool adaptive,
                             const CompensationState& in) {
  CompensationState out = in;
  out.finite = backend.Compensate(
      kCompensation, {.gradient = out.gradient.data(),
                      .count = static_cast<int64_t>(in.gradient.size()),
                      .weights_now = in.now.data(),
                      .weights_read = in.read.data(),
                      .square_in = adaptive ? in.square.data() : nullptr,
                      .square_out = adaptive ? out.square.data() : nullptr});
  return out;
}

// Tolerance: ten roundings by 2^-24; |lambda| is at most 0.5/sqrt(1e-3) = 16
// and the weights are at most 2 apart.
TEST_P(UpdateTest, CompensationFollowsItsFormula) {
  constexpr double kTolerance = 10 * 32 * 0x1p-24;
  for (bool adaptive : {false, true}) {
    for (int64_t count : kUpdateCounts) {
      const CompensationState in = RandomCompensation(count);
      const CompensationState out = Compensate(backend(), adaptive, in);
      EXPECT_TRUE(out.finite);
      int64_t wrong = 0;
      for (size_t i = 0; i < in.gradient.size(); ++i) {
        const double g = in.gradient[i];
        double square = in.square[i];
        double lambda = 0.5;
        if (adaptive) {
          square = static_cast<double>(kCompensation.square_decay) * square +
                   static_cast<double>(kCompensation.square_gain) * g * g;
          lambda /= std::sqrt(square + kCompensation.epsilon);
        }
        const double moved = static_cast<double>(in.now[i]) - in.read[i];
        const double wanted = g + lambda * g * g * moved;
        if (std::abs(out.gradient[i] - wanted) > kTolerance) ++wrong;
        if (std::abs(out.square[i] - square) > kTolerance) ++wrong;
      }
      EXPECT_EQ(wrong, 0) << "of " << count << (adaptive ? " adaptive" : "");
      EXPECT_TRUE(out == Compensate(ReferenceBackend(), adaptive, in));
      EXPECT_TRUE(out == Compensate(backend(), adaptive, in));
    }
  }
}

TEST_P(UpdateTest, ACompensationThatOverflowsIsReportedAtEveryPosition) {
  for (bool adaptive : {false, true}) {
    for (size_t position = 0; position < 67; ++position) {
      CompensationState in = RandomCompensation(67);
      EXPECT_TRUE(Compensate(backend(), adaptive, in).finite);
      // Its square is infinite in float32.
      in.gradient[position] = 1e30f;
      EXPECT_FALSE(Compensate(backend(), adaptive, in).finite) << position;
    }
  }
}

// ---- RoundChange

struct ChangeState {
  Floats before;
  Floats weights;
  Floats remainder;
  std::vector<uint16_t> change;
};

ChangeState RoundChange(const Backend& backend, const ChangeState& in) {
  ChangeState out = in;
  const auto count = static_cast<int64_t>(in.weights.size());
  // One byte off, so that no store may rely on alignment.
  std::vector<std::byte> bytes(in.weights.size() * 2 + 1);
  backend.RoundChange({.count = count,
                       .weights_in = in.before.data(),
                       .weights = out.weights.data(),
                       .remainder_in = out.remainder.data(),
                       .remainder_out = out.remainder.data(),
                       .change = bytes.data() + 1});
  out.change.resize(in.weights.size());
  if (count > 0) {
    std::memcpy(out.change.data(), bytes.data() + 1, in.weights.size() * 2);
  }
  return out;
}

ChangeState RandomChange(int64_t count) {
  Numbers numbers(static_cast<uint64_t>(count) + 5);
  ChangeState state{.before = numbers.Take<float>(count),
                    .weights = {},
                    .remainder = numbers.Take<float>(count, 0, 1e-5),
                    .change = {}};
  for (float w : state.before) {
    state.weights.push_back(w + 1e-3f * static_cast<float>(numbers.Next()));
  }
  return state;
}

TEST_P(UpdateTest, AChangeFollowsItsFormulaToTheBit) {
  for (int64_t count : kUpdateCounts) {
    const ChangeState in = RandomChange(count);
    const ChangeState out = RoundChange(backend(), in);
    int wrong = 0;
    for (size_t i = 0; i < in.weights.size(); ++i) {
      // Float64 holds each difference and sum of two float32 of this size
      // exactly, and the cast rounds it once.
      const double w = in.before[i];
      const auto step = static_cast<float>(in.weights[i] - w);
      const auto u = static_cast<float>(static_cast<double>(in.remainder[i]) +
                                        static_cast<double>(step));
      const float d = BFloat16Value(BFloat16Bits(u));
      const auto next = static_cast<float>(w + static_cast<double>(d));
      const auto moved = static_cast<float>(static_cast<double>(next) - w);
      const auto rest = static_cast<float>(static_cast<double>(u) -
                                           static_cast<double>(moved));
      if (out.change[i] != BFloat16Bits(u) || out.weights[i] != next ||
          out.remainder[i] != rest) {
        ++wrong;
      }
    }
    EXPECT_EQ(wrong, 0) << "of " << count;
  }
}

TEST_P(UpdateTest, AChangeThatIsNotFiniteShows) {
  ChangeState in = RandomChange(67);
  in.weights[3] = kInfinity;
  in.weights[40] = std::numeric_limits<float>::quiet_NaN();
  in.weights[66] = -std::numeric_limits<float>::max();
  const ChangeState out = RoundChange(backend(), in);
  EXPECT_EQ(out.weights[3], kInfinity);
  EXPECT_TRUE(std::isnan(out.weights[40]));
  EXPECT_TRUE(std::isnan(BFloat16Value(out.change[40])));
  EXPECT_EQ(out.weights[66], -kInfinity);
  EXPECT_EQ(out.change, RoundChange(ReferenceBackend(), in).change);
}

INSTANTIATE_TEST_SUITE_P(Backends, UpdateTest, testing::ValuesIn(AllBackends()),
                         BackendCaseName);

}  // namespace
}  // namespace cohort::kernels
