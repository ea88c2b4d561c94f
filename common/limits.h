#pragma once

#include <cstdint>

// Upper bounds of the numbers in a run. All of them are far beyond any real
// run; with them, sums, products and conversions of accepted numbers cannot
// leave their types. Bound every new number that comes from a peer or a flag
// by one of these.
namespace cohort::limits {

// Ranks of a cohort.
inline constexpr int32_t kWorkersMax = 4096;

// Samples of one worker's batch. Sums over kWorkersMax ranks are below 2^42.
inline constexpr int64_t kBatchSizeMax = int64_t{1} << 30;

// Samples of a step, where their number is given. Products with the sum of all
// batch sizes are at most 2^62.
inline constexpr int64_t kGlobalBatchMax = int64_t{1} << 20;

// Samples of one split. The cursor stays below 2^41, and the bounds of a
// shard, kWorkersMax * samples, below 2^52.
inline constexpr int64_t kSplitSamplesMax = int64_t{1} << 40;

// kEpochsMax * kSplitSamplesMax, the clock of the schedules, is 2^60.
inline constexpr int64_t kEpochsMax = int64_t{1} << 20;

// Versions of a run.
inline constexpr int64_t kStepsMax = int64_t{1} << 50;

// Labels of one push. Sums over kWorkersMax ranks are below 2^52, and over 2^23
// pushes of a run below 2^63.
inline constexpr int64_t kLabelsMax = int64_t{1} << 40;

// Elements a channel of one contribution to a batch norm. Sums over
// kWorkersMax ranks are 2^56, and over kPreciseBatchesMax batches 2^62.
inline constexpr int64_t kMomentsCountMax = int64_t{1} << 44;

inline constexpr int64_t kPreciseBatchesMax = int64_t{1} << 18;

// Batches that moving statistics have seen when they are registered. Each step
// adds one.
inline constexpr int64_t kBatchesTrackedMax = int64_t{1} << 50;

// Any counter: far above any real one, and small enough that sums and products
// of a few cannot overflow.
inline constexpr int64_t kCountMax = int64_t{1} << 53;

// The weight of a push's loss and the divisor of all losses, unless the weight
// is 0. Their quotient scales gradients in float32, whose largest power of two
// is 2^127: it stays between 2^-112 and 2^112 for the weights of all ranks
// together.
inline constexpr double kLossWeightMin = 0x1p-50;
inline constexpr double kLossWeightMax = 0x1p50;

// Limit on --learning_rate at any point of its schedule. It is above what any
// optimizer here is run with (LARS takes about 10), and low enough that a
// typing error does not destroy a run.
inline constexpr double kLearningRateMax = 1000;

// Limit on weight decay, LARS' trust and the lambda of delay compensation.
// Products with kLearningRateMax stay far inside float32.
inline constexpr double kFactorMax = 1e6;

// Bounds that keep numbers used in float32 arithmetic inside float32.
inline constexpr double kFloatMin = 1e-30;
inline constexpr double kFloatMax = 1e30;

// Settings of the learning rate that workers send with each push.
inline constexpr int32_t kRateGroupsMax = 1024;

// Bytes of a training program's state in one push.
inline constexpr int64_t kFrontEndStateMax = int64_t{64} << 10;

// Measures of one push, and characters of the name of each.
inline constexpr int32_t kMeasuresMax = 32;
inline constexpr int32_t kMeasureNameMax = 64;
// Sums over kWorkersMax ranks and kStepsMax steps stay inside float64.
inline constexpr double kMeasureSumMax = 0x1p900;
inline constexpr double kMeasureWeightMax = 0x1p100;

// Local steps of a worker in a step.
inline constexpr int32_t kLocalStepsMax = 1024;

// Parts of a step.
inline constexpr int32_t kStepPartsMax = 1 << 20;

// Calls of one layer, or at one site, in one part of a step.
inline constexpr int32_t kCallsMax = 1 << 16;

// Channels of a batch-norm call that is not registered, as of a layer.
inline constexpr int64_t kCallChannelsMax = int64_t{1} << 20;

// Bytes of a batch-norm call's name, entries of the path to one of its visits,
// and extents of its input.
inline constexpr int32_t kCallSiteMax = 256;
inline constexpr int32_t kCallPathMax = 32;
inline constexpr int32_t kCallExtentsMax = 64;

// Bytes of a partition. A message of protobuf holds less than 2 GiB.
inline constexpr int64_t kPartitionBytesMax = int64_t{1} << 30;

}  // namespace cohort::limits
