#include "server/run/model_limits.h"

#include "absl/strings/str_cat.h"
#include "common/printable.h"
#include "common/status_macros.h"

namespace cohort {
namespace {

// Far above the largest networks in use, and small enough that the allocations
// for each entry fit into any server's memory.
constexpr int64_t kParametersMax = 1 << 17;
constexpr int64_t kLayersMax = 1 << 16;
constexpr int64_t kNameBytesMax = 1024;
constexpr int64_t kNameShownMax = 64;
constexpr int64_t kDimensionsMax = 16;
constexpr int64_t kChannelsMax = 1 << 20;
constexpr int64_t kChannelsTotalMax = 1 << 24;

// The published version and the one that a step creates.
constexpr int64_t kVersions = 2;
constexpr int64_t kMib = 1 << 20;

absl::Status CheckAtMost(absl::string_view what, int64_t seen, int64_t max) {
  if (seen <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("model: ", what, ": got ", seen, ", want at most ", max));
}

absl::Status CheckName(const std::string& name) {
  if (!IsPrintable(name)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model: got the name ", Printable(name.substr(0, kNameShownMax)),
        ", want one without control characters"));
  }
  return CheckAtMost(
      absl::StrCat("length of the name ", name.substr(0, kNameShownMax)),
      static_cast<int64_t>(name.size()), kNameBytesMax);
}

absl::Status CheckCounts(const ModelLayout& layout) {
  COHORT_RETURN_IF_ERROR(
      CheckAtMost("parameters", static_cast<int64_t>(layout.parameters.size()),
                  kParametersMax));
  COHORT_RETURN_IF_ERROR(
      CheckAtMost("batch-norm layers",
                  static_cast<int64_t>(layout.batch_norms.size()), kLayersMax));
  for (const ParameterSpec& parameter : layout.parameters) {
    COHORT_RETURN_IF_ERROR(CheckName(parameter.name));
    COHORT_RETURN_IF_ERROR(CheckAtMost(
        absl::StrCat("dimensions of ", parameter.name),
        static_cast<int64_t>(parameter.shape.size()), kDimensionsMax));
  }
  int64_t channels = 0;
  for (const BatchNormSpec& layer : layout.batch_norms) {
    COHORT_RETURN_IF_ERROR(CheckName(layer.name));
    COHORT_RETURN_IF_ERROR(CheckAtMost(absl::StrCat("channels of ", layer.name),
                                       layer.channels, kChannelsMax));
    channels += layer.channels;
    COHORT_RETURN_IF_ERROR(
        CheckAtMost(absl::StrCat("channels of all layers up to ", layer.name),
                    channels, kChannelsTotalMax));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t WeightBytes(const ModelLayout& layout) {
  int64_t bytes = 0;
  for (const ParameterSpec& parameter : layout.parameters) {
    bytes += ElementCount(parameter) * static_cast<int64_t>(sizeof(float));
  }
  return bytes;
}

absl::Status CheckModelLimits(const ModelLayout& layout,
                              const ModelNeeds& needs) {
  COHORT_RETURN_IF_ERROR(CheckCounts(layout));
  int64_t weights = 0;
  int64_t slots = 0;
  for (const ParameterSpec& parameter : layout.parameters) {
    const int64_t elements = ElementCount(parameter);
    // Compared before it is added, so the sum cannot overflow.
    if (elements > (needs.weight_bytes_max - weights) /
                       static_cast<int64_t>(sizeof(float))) {
      return absl::InvalidArgumentError(absl::StrCat(
          "model: got more than ", needs.weight_bytes_max / kMib,
          " MiB of weights (with ", parameter.name,
          "), want at most --model_mib=", needs.weight_bytes_max / kMib,
          "; start the server with a larger --model_mib, on a machine whose "
          "memory holds the model several times (deploy/OPERATIONS.md, "
          "\"Size\")"));
    }
    const int64_t bytes = elements * static_cast<int64_t>(sizeof(float));
    weights += bytes;
    if (parameter.trainable) slots += needs.slots * bytes;
  }
  int64_t statistics = 0;
  for (const BatchNormSpec& layer : layout.batch_norms) {
    statistics += int64_t{2} * needs.statistics_kinds * layer.channels *
                  static_cast<int64_t>(sizeof(double));
  }
  const int64_t needed = kVersions * (weights + slots + statistics);
  if (needs.memory_bytes <= 0 || needed <= needs.memory_bytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "model: needs ", needed / kMib, " MiB for ", kVersions,
      " versions of weights (", weights / kMib, " MiB), optimizer slots (",
      slots / kMib, " MiB) and statistics (", statistics / kMib,
      " MiB), but the server may use ", needs.memory_bytes / kMib,
      " MiB; give it more memory, or choose an "
      "optimizer with fewer slots"));
}

}  // namespace cohort
