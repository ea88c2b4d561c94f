#include "common/cli/torchrun.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace cohort {
namespace {

TEST(TorchrunTest, TheRankIsTheLaunchersRank) {
  const std::vector<std::string> environment = {"RANK=3", "WORLD_SIZE=4",
                                                "LOCAL_RANK=1", "MASTER_ADDR=a",
                                                "MASTER_PORT=29500"};
  EXPECT_EQ(*RankFromTorchrun(environment), 3);
}

TEST(TorchrunTest, RankAloneMayBeAnything) {
  for (const std::vector<std::string>& environment :
       {std::vector<std::string>{},
        {"RANK=x"},
        {"RANK=1", "WORLD_SIZE=2"},
        {"RANK=1", "MASTER_ADDR=a"},
        {"RANK=", "WORLD_SIZE=2", "MASTER_ADDR=a"}}) {
    EXPECT_EQ(*RankFromTorchrun(environment), std::nullopt);
  }
}

TEST(TorchrunTest, NumbersThatCannotBeAreRefused) {
  struct Case {
    std::string rank;
    std::string size;
    std::string error;
  };
  for (const Case& c :
       {Case{"x", "2", "RANK: got 'x', want a number of at least 0"},
        Case{"-1", "2", "RANK: got '-1', want a number of at least 0"},
        Case{"0", "two", "WORLD_SIZE: got 'two', want a number of at least 0"},
        Case{"2", "2", "RANK: got 2, want less than WORLD_SIZE, 2"}}) {
    EXPECT_EQ(RankFromTorchrun(
                  {"RANK=" + c.rank, "WORLD_SIZE=" + c.size, "MASTER_ADDR=a"})
                  .status()
                  .message(),
              c.error);
  }
}

}  // namespace
}  // namespace cohort
