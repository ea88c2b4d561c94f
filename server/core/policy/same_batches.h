#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/ids.h"

namespace cohort {

// The digest of the batch of one rank in one step.
struct BatchDigest {
  Rank rank;
  // Not 0.
  uint64_t digest = 0;
};

// Finds ranks that train the same batches: where each worker
// reads its data, nothing else detects it, and the extra workers add nothing.
// The usual cause is one seed for all.
//
// One equal batch may be chance (a small data set), so two ranks must agree in
// kInARow compared steps in a row; steps without digests are not compared. In a
// step of several pushes each rank is compared with the lowest rank of its
// digest, so it costs O(ranks).
//
// Thread safety: none.
class SameBatches {
 public:
  static constexpr int32_t kInARow = 3;

  // One step of several pushes, ascending by rank. Returns the ranks that train
  // the same batches, ascending, the first time that this is certain; else
  // nothing.
  std::vector<Rank> NoteStep(const std::vector<BatchDigest>& step);
  // One push that is applied alone. It is compared with the last pushes of the
  // other ranks, because equal ranks are not equally fast; two agree in a row
  // if the push before had a twin of the same rank.
  std::vector<Rank> NotePush(const BatchDigest& push);

 private:
  // The digests of each rank that are kept for NotePush.
  static constexpr size_t kRecent = 8;
  struct Recent {
    uint64_t digest = 0;
    // By other rank that has had it, too: in how many pushes in a row.
    std::map<Rank, int32_t> agreed;
  };

  // The ranks that agree with the lowest that has a twin in enough steps.
  std::vector<Rank> Certain();

  // For NoteStep: pairs of ranks, the lower first, and in how many steps in a
  // row they agreed.
  std::map<std::pair<Rank, Rank>, int32_t> agreed_;
  std::map<Rank, std::deque<Recent>> recent_;
  // It has been reported.
  bool told_ = false;
};

// "ranks 0, 1 and 2 train the same batches ...", and what to do.
std::string SameBatchesText(const std::vector<Rank>& ranks);

}  // namespace cohort
