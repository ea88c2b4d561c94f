#include "server/core/policy/lead.h"

#include <gtest/gtest.h>

namespace cohort {
namespace {

RankLead Counts(int32_t rank, int64_t finished) {
  return {.rank = Rank(rank), .assignments_finished = finished, .counts = true};
}
RankLead Left(int32_t rank, int64_t finished) {
  return {.rank = Rank(rank), .assignments_finished = finished};
}

TEST(LeadTest, ARankWaitsWhenItIsTheBoundAheadOfTheSlowest) {
  struct Row {
    int64_t lead_max;
    std::vector<RankLead> ranks;
    std::vector<Rank> behind_rank0;
  };
  const std::vector<Row> table = {
      {1, {Counts(0, 0)}, {}},
      {1, {Counts(0, 5)}, {}},
      {1, {Counts(0, 0), Counts(1, 0)}, {}},
      {1, {Counts(0, 1), Counts(1, 0)}, {Rank(1)}},
      {1, {Counts(0, 1), Counts(1, 1)}, {}},
      {3, {Counts(0, 5), Counts(1, 3)}, {}},
      {3, {Counts(0, 5), Counts(1, 2)}, {Rank(1)}},
      {3, {Counts(0, 5), Counts(1, 2), Counts(2, 0)}, {Rank(1), Rank(2)}},
      {3, {Counts(0, 5), Counts(1, 9)}, {}},
      // A rank that has left under `continue` does not hold up the others.
      {3, {Counts(0, 5), Left(1, 0)}, {}},
      {1, {}, {}},
  };
  for (size_t i = 0; i < table.size(); ++i) {
    EXPECT_EQ(BehindBy(table[i].lead_max, Rank(0), table[i].ranks),
              table[i].behind_rank0)
        << "row " << i;
  }
}

TEST(LeadTest, WhoComesStartsBesideTheSlowest) {
  EXPECT_EQ(StartOfCount({}), 0);
  EXPECT_EQ(StartOfCount({Counts(0, 7), Counts(1, 4), Left(2, 1)}), 4);
  EXPECT_EQ(StartOfCount({Left(0, 3)}), 0);
}

}  // namespace
}  // namespace cohort
