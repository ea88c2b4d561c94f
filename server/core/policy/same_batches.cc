#include "server/core/policy/same_batches.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace cohort {

void SameBatches::Note(Rank rank, std::optional<Rank> twin) {
  Streak& streak = streaks_[rank];
  if (!twin.has_value()) {
    streak.steps = 0;
  } else if (streak.steps > 0 && streak.twin == *twin) {
    ++streak.steps;
  } else {
    streak = {.twin = *twin, .steps = 1};
  }
}

std::vector<Rank> SameBatches::Certain() {
  std::vector<Rank> ranks;
  if (told_) return ranks;
  for (const auto& [rank, streak] : streaks_) {
    if (streak.steps < kInARow) continue;
    if (ranks.empty()) ranks.push_back(streak.twin);
    if (streak.twin == ranks.front()) ranks.push_back(rank);
  }
  told_ = !ranks.empty();
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::vector<Rank> SameBatches::NoteStep(const std::vector<BatchDigest>& step) {
  if (step.size() < 2) return {};
  std::map<uint64_t, Rank> lowest;
  for (const BatchDigest& one : step) {
    const auto [at, first] = lowest.try_emplace(one.digest, one.rank);
    Note(one.rank, first ? std::nullopt : std::optional(at->second));
  }
  return Certain();
}

std::vector<Rank> SameBatches::NotePush(const BatchDigest& push) {
  std::optional<Rank> twin;
  for (auto& [rank, kept] : recent_) {
    if (rank == push.rank || twin.has_value()) continue;
    const auto same = std::find_if(
        kept.begin(), kept.end(),
        [&push](const Recent& one) { return one.digest == push.digest; });
    if (same == kept.end()) continue;
    same->matched = true;
    twin = rank;
  }
  std::deque<Recent>& own = recent_[push.rank];
  own.push_back({.digest = push.digest, .matched = twin.has_value()});
  if (own.size() > kRecent) {
    if (!own.front().matched) Note(push.rank, std::nullopt);
    own.pop_front();
  }
  if (twin.has_value()) Note(push.rank, twin);
  return Certain();
}

std::string SameBatchesText(const std::vector<Rank>& ranks) {
  const auto number = [](std::string* out, Rank rank) {
    absl::StrAppend(out, rank.value());
  };
  return absl::StrCat(
      "ranks ", absl::StrJoin(ranks.begin(), ranks.end() - 1, ", ", number),
      " and ", ranks.back().value(),
      " train the same batches: their data was equal in ", SameBatches::kInARow,
      " compared steps in a row, so together they are no better than one of "
      "them. Seed each by its rank before its data is shuffled, as in "
      "torch.manual_seed(seed + rank) with the rank of COHORT_RANK or "
      "job.rank, "
      "or give each rank its own part of the data");
}

}  // namespace cohort
