#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/element_type.h"
#include "common/ids.h"
#include "common/optimizers.h"

namespace cohort {

// The words of each stand in server_flags.inc, in this order.
enum class AggregationKind { kSync, kBounded, kAsync };
enum class StalenessRule { kKeep, kDrop, kScale, kCompensate };
enum class NormalizationKind { kAuto, kGlobal, kLocal };
enum class StatisticsKind {
  kSync,
  kAsync,
  kChief,
  kAfter,
  // None: evaluation normalises each batch by its own, to compare with. Never
  // the first, for there is nothing to export.
  kBatch,
  // Moving average of the first kind, beside that of the weights. With
  // OptimizerOptions::ema_decay, after all others. Not a word of the setting.
  kAverage,
};
enum class ScheduleKind { kConstant, kStep, kCosine, kPolynomial };
enum class OnWorkerLoss { kWait, kContinue };

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kMomentum;
  double learning_rate = 0.1;
  OptimizerNumbers numbers;
  double weight_decay = 5e-4;
  // Applies weight decay to biases and batch norm too.
  bool decay_everything = false;
  // Patterns of parameter names that are never decayed.
  std::vector<std::string> no_decay;
  // Longer gradients are shortened to this norm, over all parameters; 0: off.
  double clip_norm = 0;
  // Of the moving average of weights and statistics; 0: there is none.
  double ema_decay = 0;

  ScheduleKind schedule = ScheduleKind::kCosine;
  // kStep: milestones in epochs, and the factor of the rate at each.
  std::vector<double> step_epochs;
  double step_gamma = 0.1;
  double poly_power = 1;
  double warmup_epochs = 0;
  // Where kCosine and kPolynomial end.
  double final_learning_rate = 0;

  // Weights that stay as they are; see ParseFreezeSpec.
  std::vector<std::string> freeze;

  friend bool operator==(const OptimizerOptions&,
                         const OptimizerOptions&) = default;
};

// Treatment of a push computed from older weights than those it is applied to
// (bounded and async).
struct StalenessOptions {
  StalenessRule rule = StalenessRule::kKeep;
  // Versions above which kDrop drops.
  int64_t versions_max = 16;
  // t0 of kScale, versions; absent: one less than the workers, those present if
  // the cohort is elastic. Each push has it where all are equally fast.
  std::optional<int64_t> versions_free;
  // Lambda of kCompensate.
  double compensation = 0.04;
  // Lambda is divided by the root of a moving mean of g*g.
  bool compensation_adaptive = false;

  friend bool operator==(const StalenessOptions&,
                         const StalenessOptions&) = default;
};

// How the samples of a step are divided among the workers.
struct ShareOptions {
  // The server changes the weights as the workers' speeds require.
  bool automatic = false;
  // By rank, whole numbers above 0; empty: by the batch sizes.
  std::vector<int64_t> weights;

  bool given() const { return automatic || !weights.empty(); }
  friend bool operator==(const ShareOptions&, const ShareOptions&) = default;
};

// How pushes are combined. Changed as one, at an exact version.
struct PolicyOptions {
  AggregationKind aggregation = AggregationKind::kSync;
  // Sync: a step is committed once so many pushes are there; 0: all.
  int32_t pushes_min = 0;
  // Sync: updates of the workers' own weights whose sum is a push; 0: a push is
  // a gradient.
  int32_t local_steps = 0;
  // Bounded: assignments a rank may be ahead of the slowest.
  int64_t lead_max = 4;
  // Samples of a step, or of one push of each worker if pushes are applied one
  // by one; 0: what the workers' batches add up to.
  int64_t global_batch = 0;
  // Sync, with statistics of all workers.
  ShareOptions shares;
  StalenessOptions staleness;
  NormalizationKind normalization = NormalizationKind::kAuto;
  // Global normalisation: members that share their moments, consecutive ones;
  // 0: all.
  int32_t normalization_group = 0;
  // Moving statistics that are kept side by side; the first is exported.
  // Empty: auto, as the aggregation.
  std::vector<StatisticsKind> statistics;
  // Moving variances also hold how far the batch means are apart.
  bool mixture_variance = false;
  // Batches of kAfter; fewer if an epoch has fewer.
  int64_t precise_batches = 200;
  // How workers send gradients. kBFloat16: see RoundsChanges too.
  ElementType wire = ElementType::kFloat32;

  bool Keeps(StatisticsKind kind) const {
    return std::ranges::count(statistics, kind) > 0;
  }

  friend bool operator==(const PolicyOptions&, const PolicyOptions&) = default;
};

// Settings that an earlier run had changed when it reached a version.
struct PlannedChange {
  Version version;
  std::map<std::string, std::string> values;

  friend bool operator==(const PlannedChange&, const PlannedChange&) = default;
};

struct CoordinatorOptions {
  std::string run_id;
  // Name of the run, a DNS label. Empty: not chosen yet.
  std::string run_name;
  // Size of the cohort: ranks 0..workers-1. Training starts when all have
  // registered.
  int32_t workers = 2;
  // MIN of an elastic cohort: the number of workers without which training
  // neither starts nor continues. `workers` is then the most that it takes in.
  // 0: the size is fixed.
  int32_t workers_min = 0;
  PolicyOptions policy;
  OptimizerOptions optimizer{.kind = OptimizerKind::kAuto};
  // Names of the settings that were given explicitly, by a flag or a change;
  // they are kept whatever the workers register. Not a setting.
  std::set<std::string> given;
  // Changes that are made again at their versions, ascending. With any,
  // automatic shares stay as these set them. Not a setting.
  std::vector<PlannedChange> planned;
  int64_t epochs = 5;
  // Versions after which training ends, if the epochs do not end before; 0:
  // none.
  int64_t max_steps = 0;
  uint64_t seed = 1;
  absl::Duration lease = absl::Seconds(10);
  absl::Duration reconnect_grace = absl::Milliseconds(500);
  absl::Duration step_deadline = absl::Minutes(5);
  absl::Duration replacement_deadline = absl::Minutes(10);
  // For the next part of the initial values, of the worker that was asked for
  // them.
  absl::Duration values_deadline = absl::Seconds(30);
  OnWorkerLoss on_worker_loss = OnWorkerLoss::kWait;
  int64_t partition_bytes = int64_t{1} << 20;
  // Server processes that share the partitions. Not a setting.
  int32_t shards = 1;
  // Commits between checkpoints; 0: only at the end.
  int64_t checkpoint_every = 0;
  // Gradients that are held until they are folded. The process decides, from
  // its flag and its memory: no setting of the run.
  int64_t inflight_bytes_max = int64_t{4} << 30;
  // Channels times ranks that are folded under the lock: at once in a
  // rendezvous (see RendezvousTable), and at a commit into the moving
  // statistics. More of them go to the pool. Not a setting.
  int64_t moments_inline_max = int64_t{64} << 10;
  // Skipped or rejected pushes in a row after which the run stops.
  int32_t nonfinite_max = 10;
  Incarnation first_incarnation{1};

  bool elastic() const { return workers_min > 0; }
  // The setting --workers.
  auto size() { return std::tie(workers_min, workers); }
  auto size() const { return std::tie(workers_min, workers); }
  // The number of workers that training starts with.
  int32_t workers_needed() const { return elastic() ? workers_min : workers; }

  friend bool operator==(const CoordinatorOptions&,
                         const CoordinatorOptions&) = default;
};

// Resolves `auto`: under sync global normalisation and combined statistics,
// otherwise local normalisation and per-push statistics.
PolicyOptions Resolve(const PolicyOptions& policy);

// Whether the weights of a version are those before it and a change rounded to
// bfloat16. Only in steps: where pushes are applied one by one, workers seldom
// hold the version that is changed.
bool RoundsChanges(const PolicyOptions& policy);

// With local steps: the rate, momentum and decay of the outer optimizer, where
// they were not given. For when local steps begin: later changes would be
// undone. Source: Douillard et al., "DiLoCo", 2023, section 3.1.
void TakeOuterDefaults(CoordinatorOptions& options);

// Takes the settings that others imply and that were not given: an elastic
// cohort does not wait for a lost worker, and shares that were found for a
// cohort of another size are forgotten.
void TakeImplied(CoordinatorOptions& options);

// "4", or "2:8" for an elastic cohort.
std::string WorkersText(const CoordinatorOptions& options);

// Errors: InvalidArgument naming the option, the value seen and the values
// wanted; explicit conflicts (global normalisation with async) included.
absl::Status Validate(const CoordinatorOptions& options);

absl::string_view AggregationName(AggregationKind kind);
// Whether statistics of this kind change with what is trained.
bool MovesInTraining(StatisticsKind kind);
absl::string_view StatisticsName(StatisticsKind kind);
// Absent if no kind has that name.
std::optional<StatisticsKind> StatisticsKindOf(absl::string_view name);
// Such as "sync,chief".
std::string StatisticsNames(const std::vector<StatisticsKind>& kinds,
                            absl::string_view separator = ",");

// In words, such as "sync, global normalisation, sync statistics".
std::string PolicyText(const PolicyOptions& policy);

}  // namespace cohort
