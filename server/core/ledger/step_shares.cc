#include "server/core/ledger/step_shares.h"

#include <algorithm>
#include <numeric>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"

namespace cohort {
namespace {

// Adds `total` to `shares`, by `weights`. Rounding carries over from one to the
// next, so nothing is lost: each gets its quota rounded up or down.
void Distribute(int64_t total, const std::vector<int64_t>& weights,
                std::vector<int64_t>& shares) {
  const int64_t sum =
      std::accumulate(weights.begin(), weights.end(), int64_t{0});
  int64_t before = 0;
  int64_t given = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    before += weights[i];
    const int64_t until = total * before / sum;
    shares[i] += until - given;
    given = until;
  }
}

// One worker's part of a step that is shared out by weights.
struct Part {
  int64_t weight = 0;
  int64_t least = 0;
  int64_t most = 0;
  int64_t samples = 0;
  bool fixed = false;
};

// The sums over the parts that are not fixed.
struct OpenParts {
  int64_t samples = 0;
  int64_t weight = 0;
};

OpenParts OpenOf(const std::vector<Part>& parts, int64_t total) {
  OpenParts open{.samples = total};
  for (const Part& part : parts) {
    if (part.fixed) {
      open.samples -= part.samples;
    } else {
      open.weight += part.weight;
    }
  }
  return open;
}

// Fixes parts whose quota is outside their limits. If more is missing than
// exceeds, the quotas of the others fall, and those below their least stay
// there: only they are final. So it is the other way round. False: there were
// none.
bool FixLimited(std::vector<Part>& parts, const OpenParts& open) {
  // Quotas and limits times `open.weight`, to be exact.
  const absl::int128 all = open.weight;
  absl::int128 missing = 0;
  absl::int128 exceeding = 0;
  for (const Part& part : parts) {
    if (part.fixed) continue;
    const absl::int128 quota = absl::int128(open.samples) * part.weight;
    missing += std::max<absl::int128>(0, part.least * all - quota);
    exceeding += std::max<absl::int128>(0, quota - part.most * all);
  }
  bool any = false;
  for (Part& part : parts) {
    if (part.fixed) continue;
    const absl::int128 quota = absl::int128(open.samples) * part.weight;
    if (missing >= exceeding && quota < part.least * all) {
      part.samples = part.least;
    } else if (exceeding >= missing && quota > part.most * all) {
      part.samples = part.most;
    } else {
      continue;
    }
    part.fixed = true;
    any = true;
  }
  return any;
}

// The quotas of the open parts, rounded by the largest remainder.
void RoundOpen(std::vector<Part>& parts, const OpenParts& open) {
  struct Remainder {
    int64_t left = 0;
    Part* part = nullptr;
  };
  std::vector<Remainder> remainders;
  int64_t given = 0;
  for (Part& part : parts) {
    if (part.fixed) continue;
    const absl::int128 quota = absl::int128(open.samples) * part.weight;
    part.samples = static_cast<int64_t>(quota / open.weight);
    given += part.samples;
    remainders.push_back(
        {.left = static_cast<int64_t>(quota % open.weight), .part = &part});
  }
  std::stable_sort(
      remainders.begin(), remainders.end(),
      [](const Remainder& a, const Remainder& b) { return a.left > b.left; });
  for (const Remainder& remainder : remainders) {
    if (given++ < open.samples) ++remainder.part->samples;
  }
}

StepShares ShareByWeights(const std::vector<int64_t>& batch_sizes,
                          int64_t samples, const ShareRule& rule) {
  const int64_t sum =
      std::accumulate(batch_sizes.begin(), batch_sizes.end(), int64_t{0});
  StepShares shares{.batches = BatchesFor(samples, sum)};
  const bool enough = samples >= static_cast<int64_t>(batch_sizes.size());
  std::vector<Part> parts;
  for (size_t i = 0; i < batch_sizes.size(); ++i) {
    const int64_t most = rule.batch_sizes_max[i];
    parts.push_back({.weight = rule.weights[i],
                     .least = enough ? 1 : 0,
                     .most = most == 0 ? samples : most * shares.batches});
  }
  // Each round fixes a part, or is the last.
  while (FixLimited(parts, OpenOf(parts, samples))) {
  }
  RoundOpen(parts, OpenOf(parts, samples));
  for (const Part& part : parts) shares.samples.push_back(part.samples);
  return shares;
}

}  // namespace

StepShares ShareStep(const std::vector<int64_t>& batch_sizes,
                     int64_t global_batch, const ShareRule& rule) {
  const int64_t sum =
      std::accumulate(batch_sizes.begin(), batch_sizes.end(), int64_t{0});
  if (!rule.weights.empty()) {
    return ShareByWeights(batch_sizes, global_batch == 0 ? sum : global_batch,
                          rule);
  }
  if (global_batch == 0) return {.samples = batch_sizes};
  const auto workers = static_cast<int64_t>(batch_sizes.size());
  StepShares shares{.samples = std::vector<int64_t>(batch_sizes.size()),
                    .batches = BatchesFor(global_batch, sum)};
  if (global_batch < workers || global_batch >= sum) {
    Distribute(global_batch, batch_sizes, shares.samples);
    return shares;
  }
  // By batch size alone, a small batch beside large ones would get nothing. So
  // each has one sample first, and the rest goes by what it can take besides.
  std::vector<int64_t> room = batch_sizes;
  for (int64_t& batch : room) --batch;
  shares.samples.assign(batch_sizes.size(), 1);
  Distribute(global_batch - workers, room, shares.samples);
  return shares;
}

absl::Status CheckStepBatches(int64_t global_batch, int64_t batch_size) {
  if (global_batch <= kStepBatchesMax * batch_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--global_batch: got ", global_batch, ", want at most ",
                   kStepBatchesMax * batch_size, ": ", kStepBatchesMax,
                   " batches of a worker whose batch size is ", batch_size));
}

int64_t SamplesOfBatch(const StepShares& shares, size_t i) {
  return std::max<int64_t>(1, shares.samples[i] / shares.batches);
}

int32_t BatchesFor(int64_t samples, int64_t batch_size) {
  return static_cast<int32_t>(
      std::max<int64_t>(1, (samples + batch_size - 1) / batch_size));
}

}  // namespace cohort
