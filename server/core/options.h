#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/ids.h"

namespace cohort {

enum class AggregationKind { kSync, kAsync };
enum class NormalizationKind { kAuto, kGlobal, kLocal };
enum class StatisticsKind { kAuto, kSync, kAsync, kChief };
enum class OptimizerKind { kSgd, kMomentum, kNesterov };
enum class ScheduleKind { kConstant, kCosine };
enum class OnWorkerLoss { kWait, kContinue };

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kMomentum;
  double learning_rate = 0.1;
  double momentum = 0.9;
  double weight_decay = 5e-4;
  // Applies weight decay to biases and batch norm too.
  bool decay_everything = false;
  ScheduleKind schedule = ScheduleKind::kCosine;

  bool uses_momentum() const { return kind != OptimizerKind::kSgd; }
};

// How pushes are combined. Changed as one, at an exact version.
struct PolicyOptions {
  AggregationKind aggregation = AggregationKind::kSync;
  NormalizationKind normalization = NormalizationKind::kAuto;
  StatisticsKind statistics = StatisticsKind::kAuto;
};

struct CoordinatorOptions {
  std::string run_id;
  // Size of the cohort: ranks 0..workers-1. Training starts when all have
  // registered.
  int32_t workers = 2;
  PolicyOptions policy;
  OptimizerOptions optimizer;
  int64_t epochs = 5;
  uint64_t seed = 1;
  absl::Duration lease = absl::Seconds(10);
  absl::Duration reconnect_grace = absl::Milliseconds(500);
  absl::Duration step_deadline = absl::Minutes(5);
  absl::Duration replacement_deadline = absl::Minutes(10);
  OnWorkerLoss on_worker_loss = OnWorkerLoss::kWait;
  int64_t partition_bytes = int64_t{1} << 20;
  // Commits between checkpoints; 0: only at the end.
  int64_t checkpoint_every = 0;
  // Skipped or rejected pushes in a row after which the run stops.
  int32_t nonfinite_max = 10;
  Incarnation first_incarnation{1};
};

// Resolves `auto`: under sync global normalisation and combined statistics,
// under async local normalisation and per-push statistics.
PolicyOptions Resolve(const PolicyOptions& policy);

// Errors: InvalidArgument naming the option, the value seen and the values
// wanted; explicit conflicts (global normalisation with async) included.
absl::Status Validate(const CoordinatorOptions& options);

// In words, such as "sync, global normalisation, sync statistics".
std::string PolicyText(const PolicyOptions& policy);

}  // namespace cohort
