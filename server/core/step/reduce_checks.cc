#include "server/core/step/reduce_checks.h"

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/core/statistics/call_names.h"
#include "server/core/statistics/moments_checks.h"

namespace cohort {
namespace {

// Rendezvous that a rank may wait in beside two a layer: as many siblings as
// one request holds.
constexpr int64_t kWaitsMin = 64;
// Moments of one rank that are kept until the step ends. Those of ResNet-50
// take 1 MB.
constexpr int64_t kMomentsBytesMax = int64_t{256} << 20;

absl::Status CheckAmount(const RendezvousTable& table, size_t layers, Rank rank,
                         const ReduceKey& key) {
  const int64_t waits_max = kWaitsMin + 2 * static_cast<int64_t>(layers);
  if (table.calls().Has(key.place, rank)) return absl::OkStatus();
  const int32_t waits = table.members().waits(table.members().PositionOf(rank));
  if (waits >= waits_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("rendezvous: rank ", rank.value(), " already has ", waits,
                     " calls waiting for other members, want at most ",
                     waits_max, "; wait for some answers first"));
  }
  const int64_t bytes = table.BytesOf(rank);
  if (bytes >= kMomentsBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "rendezvous: got ", bytes, " bytes of moments from rank ", rank.value(),
        " in one step, want less than ", kMomentsBytesMax,
        ": the step has too many batch-norm calls"));
  }
  return absl::OkStatus();
}

// The layout does not say how many channels a call has that is not registered.
absl::Status CheckFits(const RendezvousTable& table,
                       const std::vector<BatchNormSpec>& layers, Rank rank,
                       const CallPlace& place, size_t channels) {
  const std::optional<size_t> wanted =
      place.layer < 0 ? table.ChannelsOf(place) : std::nullopt;
  if (wanted.has_value() && *wanted != channels) {
    return absl::InvalidArgumentError(
        absl::StrCat(CallTextOf(place, layers), ": got moments of ", channels,
                     " channels from rank ", rank.value(), ", want ", *wanted,
                     " as from the first member that came"));
  }
  if (place.phase == ReducePhase::kForward) return absl::OkStatus();
  if (table.IsAnswered(ForwardOf(place), rank)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "rendezvous: got ", CallTextOf(place, layers), " from rank ",
      rank.value(), ", want it after the answer to its forward pass"));
}

}  // namespace

absl::Status CheckStep(const ReduceKey& key, Rank rank, Version newest) {
  if (key.step <= newest) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "rendezvous: got step ", key.step.value(), " from rank ", rank.value(),
      ", want at most ", newest.value(), " (the newest version)"));
}

absl::Status CheckReduce(const Round& round,
                         const std::vector<BatchNormSpec>& layers, Rank rank,
                         const ReduceKey& key, const Moments& moments) {
  if (key.step != round.step() || key.attempt != round.attempt() ||
      !round.IsMember(rank)) {
    return absl::FailedPreconditionError(
        absl::StrCat("rendezvous: got step ", key.step.value(), " attempt ",
                     key.attempt.value(), " from rank ", rank.value(),
                     ", want step ", round.step().value(), " attempt ",
                     round.attempt().value(), " from one of its members"));
  }
  COHORT_RETURN_IF_ERROR(CheckContribution(key.place, moments, layers));
  COHORT_RETURN_IF_ERROR(CheckFits(round.rendezvous, layers, rank, key.place,
                                   moments.first.size()));
  COHORT_RETURN_IF_ERROR(
      CheckAmount(round.rendezvous, layers.size(), rank, key));
  if (key.place.phase != ReducePhase::kForward) return absl::OkStatus();
  return CheckSpread(CallNameOf(key.place, layers), moments);
}

}  // namespace cohort
