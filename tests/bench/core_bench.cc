#include "tests/bench/core_bench.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/status_macros.h"
#include "server/core/coordinator.h"
#include "tests/bench/kernel_bench.h"

namespace {

// Allocations of this thread, counted by the operators replaced below.
thread_local int64_t allocations = 0;

}  // namespace

void* operator new(size_t size) {
  ++allocations;
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace cohort::bench {
namespace {

// Channels of the batch-norm layers of ResNet-50, in the order of their calls.
std::vector<int64_t> ResNet50Channels() {
  std::vector<int64_t> channels = {64};
  const std::vector<std::pair<int64_t, int>> stages = {
      {64, 3}, {128, 4}, {256, 6}, {512, 3}};
  for (const auto& [width, blocks] : stages) {
    for (int block = 0; block < blocks; ++block) {
      channels.insert(channels.end(), {width, width, 4 * width});
      if (block == 0) channels.push_back(4 * width);
    }
  }
  return channels;
}

constexpr int64_t kPartitionElements = 16;
constexpr int64_t kGradientBytes =
    kPartitionElements * static_cast<int64_t>(sizeof(float));

ModelLayout BenchLayout(int64_t partitions) {
  ModelLayout layout;
  layout.parameters.push_back(
      {.name = "w", .shape = {partitions * kPartitionElements}});
  for (int64_t channels : ResNet50Channels()) {
    layout.batch_norms.push_back(
        {.name = "bn" + std::to_string(layout.batch_norms.size()),
         .channels = channels});
  }
  return layout;
}

// The cost of an empty measurement.
double ClockOverhead() {
  constexpr int kTurns = 1000;
  const double begin = ThreadSeconds();
  for (int i = 1; i < kTurns; ++i) ThreadSeconds();
  return 1e9 * (ThreadSeconds() - begin) / kTurns;
}

// A core, the messages to its workers, and the costs of its events.
class MeasuredCore {
 public:
  explicit MeasuredCore(const CoreShape& shape)
      : shape_(shape),
        core_(OptionsFor(shape)),
        told_(Size()),
        lives_(Size()) {}

  absl::Status Start() {
    for (int32_t r = 0; r < shape_.workers; ++r) {
      COHORT_RETURN_IF_ERROR(Event("join", [&](Effects& out) {
        return core_.Join(SessionId(r), {.rank = Rank(r), .batch_size = 1},
                          now_, out);
      }));
    }
    for (int32_t r = 0; r < shape_.workers; ++r) {
      COHORT_RETURN_IF_ERROR(Event("register", [&](Effects& out) {
        return core_.BeginRegister(SenderOf(r), layout_, plan_, now_, out);
      }));
    }
    return Event("values", [&](Effects& out) {
      return core_.FinishRegister(SenderOf(0), layout_, plan_, {}, now_, out)
          .status();
    });
  }

  absl::Status Step() {
    const auto layers = static_cast<int32_t>(layout_.batch_norms.size());
    for (int32_t layer = 0; layer < layers; ++layer) {
      COHORT_RETURN_IF_ERROR(Meet(layer, ReducePhase::kForward));
    }
    for (int32_t r : Order()) {
      COHORT_RETURN_IF_ERROR(Event("open", [&](Effects& out) {
        return core_.Open(
            SenderOf(r), KeyOf(r),
            {.version = told_[At(r)].version, .samples = 1, .loss_weight = 1},
            now_, out);
      }));
    }
    for (int32_t layer = layers; layer-- > 0;) {
      COHORT_RETURN_IF_ERROR(Meet(layer, ReducePhase::kBackward));
    }
    for (int32_t p = 0; p < shape_.partitions; ++p) {
      for (int32_t r : Order()) {
        COHORT_RETURN_IF_ERROR(Event("gradient", [&](Effects& out) {
          return core_
              .Gradient(SenderOf(r), KeyOf(r),
                        {.partition = p, .bytes = kGradientBytes}, now_, out)
              .status();
        }));
      }
    }
    for (int32_t p = 0; p < shape_.partitions; ++p) {
      COHORT_RETURN_IF_ERROR(Event("fold_done", [&](Effects& out) {
        core_.Folded({.transaction = transaction_,
                      .partition = p,
                      .gradient_bytes = shape_.workers * kGradientBytes,
                      .prepared = true},
                     now_, out);
        return absl::OkStatus();
      }));
    }
    COHORT_RETURN_IF_ERROR(RunFolds());
    for (int32_t r : Order()) {
      PushClosing closing{.labels = 1,
                          .batch_norm_calls = std::vector<int32_t>(
                              layout_.batch_norms.size(), 1),
                          .contributions = 2 * std::ssize(layout_.batch_norms)};
      COHORT_RETURN_IF_ERROR(Event("close", [&](Effects& out) {
        return core_.Close(SenderOf(r), KeyOf(r), std::move(closing), now_,
                           out);
      }));
    }
    // The statistics of many ranks are computed outside of the core.
    return RunFolds();
  }

  void ForgetCosts() { costs_.clear(); }
  std::map<std::string, EventCosts> costs() const {
    std::map<std::string, EventCosts> costs = costs_;
    for (auto& [kind, cost] : costs) {
      cost.mean_ns /= static_cast<double>(cost.count);
      cost.mean_allocations /= static_cast<double>(cost.count);
    }
    return costs;
  }

 private:
  static CoordinatorOptions OptionsFor(const CoreShape& shape) {
    CoordinatorOptions options;
    options.run_id = "bench";
    options.workers = shape.workers;
    options.partition_bytes = kGradientBytes;
    return options;
  }
  size_t Size() const { return static_cast<size_t>(shape_.workers); }
  static size_t At(int32_t rank) { return static_cast<size_t>(rank); }
  Sender SenderOf(int32_t rank) const {
    return {
        .run_id = "bench", .rank = Rank(rank), .incarnation = lives_[At(rank)]};
  }
  PushKey KeyOf(int32_t rank) const {
    return {.sequence = told_[At(rank)].sequence,
            .attempt = told_[At(rank)].attempt};
  }

  absl::Status Event(const std::string& kind,
                     absl::FunctionRef<absl::Status(Effects&)> call) {
    Effects effects;
    const int64_t allocated = allocations;
    const double begin = ThreadSeconds();
    const absl::Status status = call(effects);
    const double took =
        std::max(1e9 * (ThreadSeconds() - begin) - overhead_, 0.0);
    EventCosts& cost = costs_[kind];
    ++cost.count;
    cost.mean_ns += took;
    cost.longest_ns = std::max(cost.longest_ns, took);
    cost.mean_allocations += static_cast<double>(allocations - allocated);
    for (Effect& effect : effects) Note(effect);
    return status;
  }

  // The ranks, in the order in which they contribute.
  std::vector<int32_t> Order() const {
    std::vector<int32_t> order;
    const int32_t first = shape_.order == ArrivalOrder::kFirstLast ? 1 : 0;
    for (int32_t i = 0; i < shape_.workers; ++i) {
      order.push_back((i + first) % shape_.workers);
    }
    return order;
  }

  absl::Status Meet(int32_t layer, ReducePhase phase) {
    const auto channels =
        static_cast<size_t>(layout_.batch_norms[At(layer)].channels);
    const ReduceKey key{.step = told_[0].version,
                        .attempt = told_[0].attempt,
                        .place = {.layer = layer, .phase = phase}};
    const std::string kind =
        phase == ReducePhase::kForward ? "forward_moments" : "backward_sums";
    for (int32_t r : Order()) {
      Moments moments{.count = 2,
                      .first = std::vector<double>(channels, r),
                      .second = std::vector<double>(channels, 1)};
      COHORT_RETURN_IF_ERROR(Event(kind, [&](Effects& out) {
        return core_.Reduce(SenderOf(r),
                            {{.key = key, .moments = std::move(moments)}}, now_,
                            out);
      }));
    }
    return RunFolds();
  }

  absl::Status RunFolds() {
    while (!moments_folds_.empty()) {
      MomentsFold done = RunMomentsFold(std::move(moments_folds_.back()));
      moments_folds_.pop_back();
      COHORT_RETURN_IF_ERROR(Event("moments_folded", [&](Effects& out) {
        core_.MomentsFolded(std::move(done), now_, out);
        return absl::OkStatus();
      }));
    }
    while (!updates_.empty()) {
      StatisticsUpdate done = RunStatisticsUpdate(std::move(updates_.back()));
      updates_.pop_back();
      COHORT_RETURN_IF_ERROR(Event("statistics_updated", [&](Effects& out) {
        core_.StatisticsUpdated(std::move(done), now_, out);
        return absl::OkStatus();
      }));
    }
    return absl::OkStatus();
  }

  void Note(Effect& effect) {
    if (const auto* joined = std::get_if<effect::Joined>(&effect)) {
      lives_[At(joined->rank.value())] = joined->incarnation;
    } else if (const auto* told = std::get_if<effect::Notify>(&effect)) {
      told_[At(static_cast<int32_t>(told->session.value()))] = told->assignment;
    } else if (const auto* verdict =
                   std::get_if<effect::SendVerdict>(&effect)) {
      told_[At(verdict->rank.value())] = verdict->verdict.next;
    } else if (const auto* prepare = std::get_if<command::Prepare>(&effect)) {
      transaction_ = prepare->plan.transaction;
    } else if (auto* moments = std::get_if<effect::FoldMoments>(&effect)) {
      moments_folds_.push_back(std::move(moments->job));
    } else if (auto* update = std::get_if<effect::UpdateStatistics>(&effect)) {
      updates_.push_back(std::move(update->job));
    }
  }

  const CoreShape shape_;
  const double overhead_ = ClockOverhead();
  const ModelLayout layout_ = BenchLayout(shape_.partitions);
  const RunPlan plan_{.dataset = "bench",
                      .train_samples = int64_t{1} << 40,
                      .loss_reference = 1};
  const Instant now_;
  Coordinator core_;
  std::vector<Assignment> told_;
  std::vector<Incarnation> lives_;
  // The one that was begun last.
  int64_t transaction_ = 0;
  std::vector<MomentsFold> moments_folds_;
  std::vector<StatisticsUpdate> updates_;
  std::map<std::string, EventCosts> costs_;
};

}  // namespace

absl::StatusOr<std::map<std::string, EventCosts>> MeasureCore(
    const CoreShape& shape) {
  MeasuredCore core(shape);
  COHORT_RETURN_IF_ERROR(core.Start());
  COHORT_RETURN_IF_ERROR(core.Step());
  core.ForgetCosts();
  for (int32_t step = 0; step < shape.steps; ++step) {
    COHORT_RETURN_IF_ERROR(core.Step());
  }
  return core.costs();
}

}  // namespace cohort::bench
