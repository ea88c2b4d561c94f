#include "server/checkpoint/state_checks.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/dns_label.h"
#include "common/limits.h"
#include "common/status_macros.h"
#include "common/wire/field_checks.h"

namespace cohort {
namespace {

using limits::kCountMax;

// Far above any real batch.
constexpr int64_t kSamplesMax = int64_t{1} << 40;
constexpr size_t kTextLengthMax = 1024;

using wire_internal::Refuse;

absl::Status CheckWithin(absl::string_view field, int64_t seen, int64_t least,
                         int64_t most) {
  if (seen >= least && seen <= most) return absl::OkStatus();
  return Refuse(field, seen, absl::StrCat(least, " to ", most));
}

absl::Status CheckIdentity(const RunIdentity& identity) {
  if (identity.run_id.empty() || identity.run_id.size() > kTextLengthMax) {
    return Refuse("run_id", absl::StrCat(identity.run_id.size(), " characters"),
                  absl::StrCat("1 to ", kTextLengthMax));
  }
  if (identity.run_name.empty()) return absl::OkStatus();
  return CheckDnsLabel("run_name", identity.run_name);
}

absl::Status CheckReissue(const RunState& state) {
  std::vector<IssuedRange> ranges = state.reissue;
  std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) {
    return std::tie(a.epoch, a.range.begin) < std::tie(b.epoch, b.range.begin);
  });
  for (size_t i = 0; i < ranges.size(); ++i) {
    const IssuedRange& r = ranges[i];
    // In the epoch in progress, only data before the cursor can have been
    // issued.
    const int64_t cut = r.epoch == state.data_epoch
                            ? state.cursor
                            : state.model->plan.train_samples;
    const bool apart = i == 0 || ranges[i - 1].epoch != r.epoch ||
                       ranges[i - 1].range.end <= r.range.begin;
    if (r.epoch >= 0 && r.epoch <= state.data_epoch && r.range.begin >= 0 &&
        r.range.begin < r.range.end && r.range.end <= cut && apart) {
      continue;
    }
    return Refuse(
        "reissue",
        absl::StrCat("[", r.range.begin, ", ", r.range.end, ") of epoch ",
                     r.epoch),
        absl::StrCat("ranges below ", cut, " that were issued, each once"));
  }
  return absl::OkStatus();
}

absl::Status CheckProgress(const RunState& state) {
  COHORT_RETURN_IF_ERROR(
      CheckWithin("version", state.snapshot->version.value(), 0, kCountMax));
  COHORT_RETURN_IF_ERROR(CheckWithin("samples", state.samples, 0, kCountMax));
  COHORT_RETURN_IF_ERROR(
      CheckWithin("local_steps", state.local_steps, 0, kCountMax));
  COHORT_RETURN_IF_ERROR(
      CheckWithin("data_epoch", state.data_epoch, 0, kCountMax));
  // The cursor at the end of an epoch is 0 of the next.
  const int64_t samples = state.model->plan.train_samples;
  COHORT_RETURN_IF_ERROR(CheckWithin("cursor", state.cursor, 0,
                                     std::max<int64_t>(samples - 1, 0)));
  COHORT_RETURN_IF_ERROR(CheckWithin(
      "next_incarnation", state.next_incarnation.value(), 0, INT64_MAX - 1));
  return CheckReissue(state);
}

absl::Status CheckRanks(const RunState& state) {
  const size_t ranks = state.next_sequences.size();
  // A run that has shrunk still knows the assignments of the ranks that it had,
  // which may come back.
  if (ranks > limits::kWorkersMax || ranks < state.batch_sizes.size()) {
    return Refuse(
        "next_sequences and batch_sizes",
        absl::StrCat(ranks, " and ", state.batch_sizes.size()),
        absl::StrCat("one entry per rank, at most ", limits::kWorkersMax));
  }
  for (const Sequence sequence : state.next_sequences) {
    COHORT_RETURN_IF_ERROR(
        CheckWithin("next_sequences", sequence.value(), 0, kCountMax));
  }
  for (const int64_t size : state.batch_sizes) {
    // 0 if the rank was never held.
    COHORT_RETURN_IF_ERROR(CheckWithin("batch_sizes", size, 0, kSamplesMax));
  }
  return absl::OkStatus();
}

absl::Status CheckHistory(const RunState& state) {
  int64_t before = -1;
  for (const PolicyRecord& record : state.policy_history) {
    COHORT_RETURN_IF_ERROR(CheckWithin("policy_history.policy_epoch",
                                       record.policy_epoch, before + 1,
                                       state.policy_epoch));
    before = record.policy_epoch;
    COHORT_RETURN_IF_ERROR(CheckWithin("policy_history.version",
                                       record.version.value(), 0, kCountMax));
    COHORT_RETURN_IF_ERROR(
        CheckWithin("policy_history.samples", record.samples, 0, kCountMax));
  }
  return CheckWithin("policy_epoch", state.policy_epoch, 0, kCountMax);
}

absl::Status CheckUpdates(const RunState& state) {
  for (const Slots& slots : state.snapshot->slots) {
    for (const int64_t updates : slots.updates) {
      COHORT_RETURN_IF_ERROR(CheckWithin("updates", updates, 0, kCountMax));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckState(const RunIdentity& identity, const RunState& state) {
  COHORT_RETURN_IF_ERROR(CheckIdentity(identity));
  COHORT_RETURN_IF_ERROR(CheckProgress(state));
  COHORT_RETURN_IF_ERROR(CheckRanks(state));
  COHORT_RETURN_IF_ERROR(CheckHistory(state));
  return CheckUpdates(state);
}

}  // namespace cohort
