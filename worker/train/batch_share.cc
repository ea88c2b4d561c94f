#include "worker/train/batch_share.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace cohort {
namespace {

constexpr int64_t kSamplesMax = int64_t{1} << 31;

}  // namespace

absl::StatusOr<int64_t> SamplesOf(const BatchShare& share) {
  if (share.batch_size < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--batch_size: got ", share.batch_size, ", want 1 or more"));
  }
  const double samples =
      std::floor(static_cast<double>(share.batch_size) * share.share + 0.5);
  // Written so that NaN is refused.
  if (!(samples >= 1 && samples <= static_cast<double>(kSamplesMax))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--share: got ", share.share, " of --batch_size=", share.batch_size,
        ", want a share that results in 1 to ", kSamplesMax, " images"));
  }
  return static_cast<int64_t>(samples);
}

}  // namespace cohort
