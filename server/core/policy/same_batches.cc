#include "server/core/policy/same_batches.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace cohort {

std::vector<Rank> SameBatches::Certain() {
  std::vector<Rank> ranks;
  // Ordered by the lower rank, so the group of the lowest rank comes first. One
  // group is enough for the warning.
  for (const auto& [pair, steps] : agreed_) {
    if (steps < kInARow) continue;
    if (ranks.empty()) ranks.push_back(pair.first);
    if (pair.first == ranks.front()) ranks.push_back(pair.second);
  }
  told_ = !ranks.empty();
  return ranks;
}

std::vector<Rank> SameBatches::NoteStep(const std::vector<BatchDigest>& step) {
  if (told_ || step.size() < 2) return {};
  std::map<Rank, uint64_t> digests;
  std::map<uint64_t, Rank> lowest;
  for (const BatchDigest& one : step) {
    digests.emplace(one.rank, one.digest);
    const auto [at, first] = lowest.try_emplace(one.digest, one.rank);
    if (!first) ++agreed_[{at->second, one.rank}];
  }
  // A pair that differs begins again. One of which a rank has sent no digest
  // keeps its count, because the step was not compared.
  std::erase_if(agreed_, [&digests](const auto& agreed) {
    const auto low = digests.find(agreed.first.first);
    const auto high = digests.find(agreed.first.second);
    return low != digests.end() && high != digests.end() &&
           low->second != high->second;
  });
  return Certain();
}

std::vector<Rank> SameBatches::NotePush(const BatchDigest& push) {
  if (told_) return {};
  std::deque<Recent>& own = recent_[push.rank];
  const std::map<Rank, int32_t> before =
      own.empty() ? std::map<Rank, int32_t>() : own.back().agreed;
  own.push_back({.digest = push.digest});
  if (own.size() > kRecent) own.pop_front();
  std::vector<Rank> ranks;
  for (auto& [rank, kept] : recent_) {
    if (rank == push.rank) continue;
    const auto same = std::find_if(
        kept.begin(), kept.end(),
        [&push](const Recent& one) { return one.digest == push.digest; });
    if (same == kept.end()) continue;
    const auto at = before.find(rank);
    const int32_t steps = at == before.end() ? 1 : at->second + 1;
    own.back().agreed[rank] = steps;
    // At the other push too: its rank may be the next to push, and continues
    // the count from there.
    same->agreed[push.rank] = steps;
    if (steps >= kInARow) ranks.push_back(rank);
  }
  if (ranks.empty()) return ranks;
  told_ = true;
  ranks.push_back(push.rank);
  std::sort(ranks.begin(), ranks.end());
  return ranks;
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
