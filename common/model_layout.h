#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/limits.h"

namespace cohort {

// One parameter of the model. Elements are float32, row-major.
struct ParameterSpec {
  // Dotted path in the module tree, such as "layer1.0.conv1.weight".
  std::string name;
  std::vector<int64_t> shape;
  // If false, the server keeps the value and no gradient is exchanged.
  bool trainable = true;
  // True if weight decay skips this parameter by default: biases, and the scale
  // and shift of batch norm.
  bool decay_exempt = false;
  // Factors of the run's learning rate and weight decay; finite and not
  // negative.
  double rate_multiplier = 1;
  double decay_multiplier = 1;
  // Index of its learning rate in openings that have any.
  int32_t rate_group = 0;

  friend bool operator==(const ParameterSpec&, const ParameterSpec&) = default;
};

// Number of elements; the shape must be valid.
int64_t ElementCount(const ParameterSpec& parameter);

// How moving statistics are updated and which variance they hold
// (BatchNormSpec::momentum is the weight a of the newest batch in both).
enum class StatisticsConvention {
  // r <- (1-a)r + a*s; unbiased variance M2/(N-1).
  kPyTorch,
  // r <- (1-a)r + a*s; biased variance M2/N.
  kKeras,
};

// One batch-norm layer; its scale and shift are ordinary parameters.
struct BatchNormSpec {
  std::string name;
  int64_t channels = 0;
  double epsilon = 1e-5;
  // Absent: cumulative average, a = 1/num_batches_tracked.
  std::optional<double> momentum = 0.1;
  bool affine = true;
  bool track_statistics = true;
  StatisticsConvention convention = StatisticsConvention::kPyTorch;

  friend bool operator==(const BatchNormSpec&, const BatchNormSpec&) = default;
};

// Everything about a model that the server and all workers must agree on.
struct ModelLayout {
  std::vector<ParameterSpec> parameters;
  std::vector<BatchNormSpec> batch_norms;
};

// Errors: InvalidArgument naming the entry: no parameters, empty or repeated
// name, non-positive or overflowing shape, non-positive channels or epsilon,
// momentum outside [0, 1], a multiplier that is negative or not finite, a rate
// group outside 0 to limits::kRateGroupsMax.
absl::Status Validate(const ModelLayout& layout);

// Compares `seen` with `wanted` name by name.
// Errors: FailedPrecondition with the first difference, such as
//   "conv1.weight: got shape [64,3,3,3], want [32,1,3,3]".
absl::Status CheckSameLayout(const ModelLayout& seen,
                             const ModelLayout& wanted);
// The same for a client that only reads weights: how parameters decay and at
// which rate they learn may differ.
absl::Status CheckReadable(const ModelLayout& seen, const ModelLayout& wanted);

// A contiguous piece of one parameter's elements.
struct Slice {
  // Index into ModelLayout::parameters.
  int32_t parameter = 0;
  int64_t offset = 0;
  int64_t count = 0;

  friend bool operator==(const Slice&, const Slice&) = default;
};

// The unit of transfer and of folding: slices whose elements are concatenated
// in order. Small parameters share a partition, large ones span several;
// trainable and frozen parameters never mix.
struct Partition {
  std::vector<Slice> slices;
  int64_t elements = 0;
  bool trainable = true;

  friend bool operator==(const Partition&, const Partition&) = default;
};

// Cuts the model, in layout order, into partitions of at most `target_bytes`
// (at least one element each). Deterministic, and every element of every
// parameter is in exactly one partition.
std::vector<Partition> MakePartitions(const ModelLayout& layout,
                                      int64_t target_bytes);

// The data and loss of a run; compared across workers.
struct RunPlan {
  std::string dataset;
  // Digest of the data set's content, lower-case hexadecimal.
  std::string dataset_digest;
  int64_t train_samples = 0;
  int64_t test_samples = 0;
  // n_ref: constant divisor of every worker's loss sum.
  double loss_reference = 1;
  // The loss in words, with every setting that changes it.
  std::string loss;
  // The samples are the workers' own: both counts are 0, assignments have no
  // range, and openings say how many samples there were.
  bool own_data = false;
  // Every opening carries the learning rates.
  bool rates_by_workers = false;
  // Settings that the workers' optimizer stands for, such as
  // "optimizer" -> "adam"; see TakeWorkersOptimizer.
  std::map<std::string, std::string> optimizer;
  // The optimizer of local steps, in words, with all that makes it differ.
  // Empty: the program's default.
  std::string local_optimizer;
  // Under sync, training of an epoch begins after the evaluation of the one
  // before.
  bool awaits_scores = false;
};

// Errors: InvalidArgument naming the field: a number that no data set or loss
// has.
absl::Status Validate(const RunPlan& plan);

// Layout and plan of a run, fixed by the first complete registration.
struct RegisteredModel {
  ModelLayout layout;
  std::vector<Partition> partitions;
  RunPlan plan;
};

// Groups of parameters with a separate learning rate: the highest
// rate_group and one.
int32_t RateGroups(const ModelLayout& layout);

// Errors: FailedPrecondition naming the field. loss_reference is not
// compared: the server's value rules.
absl::Status CheckSamePlan(const RunPlan& seen, const RunPlan& wanted);

// Moving statistics of one batch-norm layer, float64 [channels] each.
struct LayerStatistics {
  std::vector<double> mean;
  std::vector<double> variance;
  int64_t num_batches_tracked = 0;

  friend bool operator==(const LayerStatistics&,
                         const LayerStatistics&) = default;
};

// `statistics` has one entry a layer or none, of at most `tracked_max` batches.
// Errors: InvalidArgument naming the layer: wrong number of channels, a mean or
//   variance that is not finite in float32, a negative variance or count.
absl::Status Validate(const std::vector<LayerStatistics>& statistics,
                      const ModelLayout& layout,
                      int64_t tracked_max = limits::kCountMax);

// Mean 0, variance 1, nothing tracked, one entry a layer.
std::vector<LayerStatistics> InitialStatistics(const ModelLayout& layout);

// Trainable partitions in the order in which every worker sends their
// gradients: the last first, as a backward pass finishes with the last layers
// first.
std::vector<int32_t> SendOrder(const std::vector<Partition>& partitions);

}  // namespace cohort
