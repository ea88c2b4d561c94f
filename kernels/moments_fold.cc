#include "kernels/moments_fold.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/check.h"
#include "common/moments.h"

namespace cohort::kernels {
namespace {

// Zeros of the parts' shape, which is checked to be one.
Moments ZerosLike(absl::Span<const Moments* const> parts) {
  Moments zeros;
  if (parts.empty()) return zeros;
  const size_t channels = parts.front()->first.size();
  for (const Moments* part : parts) {
    COHORT_CHECK(
        part->first.size() == channels && part->second.size() == channels,
        absl::StrCat("moments of ", part->first.size(), " and ",
                     part->second.size(), " channels, want ", channels));
    COHORT_CHECK(part->count >= 0, absl::StrCat("count ", part->count));
  }
  zeros.first.assign(channels, 0.0);
  zeros.second.assign(channels, 0.0);
  return zeros;
}

// Folds a non-empty part into a non-empty total.
void Combine(const Moments& part, Moments& total) {
  const double n_total = static_cast<double>(total.count);
  const double n_part = static_cast<double>(part.count);
  // The product of two counts may exceed int64, so all of it is float64.
  const double share = n_part / (n_total + n_part);
  for (size_t c = 0; c < total.first.size(); ++c) {
    const double delta = part.first[c] - total.first[c];
    total.first[c] += delta * share;
    total.second[c] += part.second[c] + delta * delta * (n_total * share);
  }
  total.count += part.count;
}

}  // namespace

Moments FoldForward(absl::Span<const Moments* const> in_rank_order) {
  Moments total = ZerosLike(in_rank_order);
  for (const Moments* part : in_rank_order) AddForward(*part, total);
  return total;
}

void AddForward(const Moments& part, Moments& total) {
  if (part.count == 0) return;
  if (total.count == 0) {
    total = part;
  } else {
    Combine(part, total);
  }
}

void AddBackward(const Moments& part, Moments& total) {
  total.count += part.count;
  for (size_t c = 0; c < total.first.size(); ++c) {
    total.first[c] += part.first[c];
    total.second[c] += part.second[c];
  }
}

}  // namespace cohort::kernels
