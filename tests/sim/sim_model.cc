#include "tests/sim/sim_model.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/check.h"
#include "common/permutation.h"

namespace cohort::sim {
namespace {

// In [-0.5, 0.5).
double Noise(int64_t epoch, int64_t index, int64_t what) {
  const uint64_t bits =
      MixSeed(static_cast<uint64_t>(epoch), static_cast<uint64_t>(index),
              static_cast<uint64_t>(what));
  return static_cast<double>(bits >> 11) * 0x1.0p-53 - 0.5;
}

const BatchNormSpec& LayerOf(const StepInput& input, size_t call) {
  const ModelLayout& layout = input.spec->layout;
  const auto layer = static_cast<size_t>(CallsOf(layout)[call].layer);
  return layout.batch_norms[layer];
}

}  // namespace

bool ChangesState(FrontEndStates states, Version read) {
  if (states != FrontEndStates::kSometimes) {
    return states == FrontEndStates::kAlways;
  }
  return MixSeed(static_cast<uint64_t>(read.value()), 6) % 3 != 0;
}

FrontEndState NextState(const FrontEndState& state) {
  return {.steps = state.steps + 1,
          .hash = MixSeed(state.hash, static_cast<uint64_t>(state.steps))};
}

std::string Encode(const FrontEndState& state, Rank rank) {
  return absl::StrCat(state.steps, " ", state.hash, " ", rank.value());
}

FrontEndState Decode(const std::string* text) {
  FrontEndState state;
  if (text == nullptr) return state;
  const std::vector<std::string> parts = absl::StrSplit(*text, ' ');
  COHORT_CHECK(parts.size() == 3 && absl::SimpleAtoi(parts[0], &state.steps) &&
                   absl::SimpleAtoi(parts[1], &state.hash),
               *text);
  return state;
}

IndexRange BatchOf(const OwnStream& stream, int64_t number) {
  // Batches lie apart. Some have another size than their rank's, and the parts
  // of the last term make some of no weight (LossWeight).
  const int64_t begin =
      ((stream.process * kElasticRanksMax + stream.rank.value()) << 24) +
      64 * number + number % 7;
  return {.begin = begin,
          .end = begin + std::max<int64_t>(
                             1, stream.batch_size + (number * 5) % 4 - 1)};
}

std::vector<BatchNormCall> CallsOf(const ModelLayout& layout) {
  std::vector<BatchNormCall> calls;
  const auto layers = static_cast<int32_t>(layout.batch_norms.size());
  for (int32_t layer = 0; layer < layers; ++layer) {
    calls.push_back({.layer = layer, .call = 0});
  }
  if (layers > 1) calls.push_back({.layer = layers - 1, .call = 1});
  return calls;
}

std::vector<int32_t> CallCounts(const ModelLayout& layout) {
  std::vector<int32_t> counts(layout.batch_norms.size());
  for (const BatchNormCall& call : CallsOf(layout)) {
    ++counts[static_cast<size_t>(call.layer)];
  }
  return counts;
}

namespace {

// An arbitrary number that all ranks agree on.
uint64_t NumberOf(const StepInput& input, size_t call, int64_t what) {
  return MixSeed(static_cast<uint64_t>(input.version.value()), call,
                 static_cast<uint64_t>(what));
}

// Whether members meet. Where they do not, a step has one part.
bool Meets(const StepInput& input) {
  return Resolve(input.spec->coordinator.policy).normalization ==
         NormalizationKind::kGlobal;
}

}  // namespace

int32_t UpdatesOf(const StepInput& input) {
  if (!input.spec->extras.updates) return 1;
  return 1 + static_cast<int32_t>(NumberOf(input, 0, 10) % 3);
}

CallPlace PlaceOf(const StepInput& input, size_t call) {
  const BatchNormCall made = CallsOf(input.spec->layout)[call];
  CallPlace place{.layer = made.layer, .call = made.call};
  if (input.spec->extras.skips && Meets(input) && made.call > 0 &&
      NumberOf(input, call, 8) % 2 == 0) {
    place.part = 1;
    place.call = 0;
  }
  return place;
}

bool HasOwnPass(const StepInput& input, size_t call) {
  return input.spec->extras.skips && NumberOf(input, call, 9) % 3 == 0;
}

Moments PassMoments(Moments backward) {
  for (double& sum : backward.first) sum *= -3;
  for (double& sum : backward.second) sum *= 5;
  return backward;
}

Moments WithPass(Moments backward, const std::optional<Moments>& pass) {
  for (size_t c = 0; pass.has_value() && c < backward.first.size(); ++c) {
    backward.first[c] += pass->first[c];
    backward.second[c] += pass->second[c];
  }
  return backward;
}

std::vector<size_t> MadeCalls(const StepInput& input) {
  const std::vector<BatchNormCall> calls = CallsOf(input.spec->layout);
  std::vector<size_t> made;
  const bool skips = input.spec->extras.skips;
  const auto number = [](int64_t a, int64_t b, int64_t c) {
    return MixSeed(static_cast<uint64_t>(a), static_cast<uint64_t>(b),
                   static_cast<uint64_t>(c));
  };
  for (size_t i = 0; i < calls.size(); ++i) {
    // All calls of a layer, or none.
    if (!skips ||
        number(input.epoch, input.range.begin, 50 + calls[i].layer) % 3 != 0) {
      made.push_back(i);
    }
  }
  if (!skips) return made;
  // The same order for all ranks. Calls of one layer stay in order.
  std::stable_sort(made.begin(), made.end(), [&](size_t a, size_t b) {
    const int64_t version = input.version.value();
    return number(version, calls[a].layer, 7) <
           number(version, calls[b].layer, 7);
  });
  return made;
}

std::vector<SharedFloats> InitialValues(
    const RunSpec& spec, const std::vector<Partition>& partitions, Rank rank) {
  std::vector<SharedFloats> values;
  for (size_t p = 0; p < partitions.size(); ++p) {
    auto buffer = std::make_shared<FloatBuffer>(partitions[p].elements);
    for (int64_t i = 0; i < buffer->size(); ++i) {
      buffer->data()[i] = static_cast<float>(Noise(
          spec.number, i, 1000 + 100 * rank.value() + static_cast<int64_t>(p)));
    }
    values.push_back(std::move(buffer));
  }
  return values;
}

std::vector<IndexRange> RangesOf(const StepInput& input) {
  return input.local_steps.empty() ? std::vector<IndexRange>{input.range}
                                   : input.local_steps;
}

namespace {

std::vector<int64_t> SamplesOf(const StepInput& input) {
  std::vector<int64_t> samples;
  for (const IndexRange& range : RangesOf(input)) {
    for (int64_t i = range.begin; i < range.end; ++i) samples.push_back(i);
  }
  return samples;
}

}  // namespace

Moments ForwardMoments(const StepInput& input, size_t call,
                       const std::vector<Moments>& combined) {
  const auto channels = static_cast<size_t>(LayerOf(input, call).channels);
  const double shift = 0.1 * static_cast<double>(input.weights[0]->data()[0]) +
                       (combined.empty() ? 0 : 0.05 * combined.back().first[0]);
  Moments moments{.count = 2 * input.range.size()};
  for (size_t c = 0; c < channels; ++c) {
    const auto what = static_cast<int64_t>(100 * call + c);
    double sum = 0;
    double squares = 0;
    for (const int64_t i : SamplesOf(input)) {
      const double x = Noise(input.epoch, i, what);
      sum += x;
      squares += x * x;
    }
    moments.first.push_back(sum / static_cast<double>(input.range.size()) +
                            shift);
    moments.second.push_back(squares);
  }
  return moments;
}

Moments BackwardMoments(const StepInput& input, size_t call,
                        const Moments& forward) {
  Moments moments{.count = forward.count};
  for (size_t c = 0; c < forward.first.size(); ++c) {
    const auto what = static_cast<int64_t>(10000 + 100 * call + c);
    double sum = 0;
    for (const int64_t i : SamplesOf(input)) {
      sum += Noise(input.epoch, i, what);
    }
    moments.first.push_back(sum);
    moments.second.push_back(sum * forward.first[c]);
  }
  return moments;
}

std::vector<float> Gradient(const StepInput& input, int32_t partition,
                            const Moments& forward, const Moments& backward) {
  const SharedFloats& weights = input.weights[static_cast<size_t>(partition)];
  const auto samples = static_cast<double>(input.range.size());
  const double total = static_cast<double>(std::max<int64_t>(forward.count, 1));
  const double shared = forward.first.empty()
                            ? 0
                            : 0.1 * forward.first[0] +
                                  0.1 * std::sqrt(forward.second[0] / total) +
                                  0.1 * backward.first[0] / total;
  std::vector<float> gradient;
  if (LossWeight(input.range) == 0) {
    gradient.resize(static_cast<size_t>(weights->size()));
    return gradient;
  }
  for (int64_t i = 0; i < weights->size(); ++i) {
    const double w = static_cast<double>(weights->data()[i]);
    double sum = samples * (0.3 * w + shared);
    for (const int64_t s : SamplesOf(input)) {
      sum += Noise(input.epoch, s, 20000 + 100 * partition + i);
    }
    gradient.push_back(
        static_cast<float>(sum / input.spec->plan.loss_reference));
  }
  return gradient;
}

std::vector<int32_t> AbsentSlices(const StepInput& input,
                                  const Partition& partition) {
  if (partition.slices.size() < 2 || input.range.begin % 3 != 0) return {};
  return {1};
}

size_t GradientCall(size_t calls, int32_t partition) {
  return calls == 0 ? 0 : static_cast<size_t>(partition) % calls;
}

double LossWeight(const IndexRange& range) {
  if (range.begin % 4 == 0) return 0;
  double weight = 0;
  for (int64_t i = range.begin; i < range.end; ++i) {
    weight += 0.5 * static_cast<double>(1 + i % 3);
  }
  return weight;
}

}  // namespace cohort::sim
