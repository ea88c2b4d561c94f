#include "worker/session/partition_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace cohort {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Parameters 0 and 1 share partition 0; parameter 2 spans 1 and 2; partition 3
// is frozen; parameter 4 has partition 4.
std::vector<Partition> Example() {
  return {
      {.slices = {{.parameter = 0, .count = 1}, {.parameter = 1, .count = 1}}},
      {.slices = {{.parameter = 2, .count = 4}}},
      {.slices = {{.parameter = 2, .offset = 4, .count = 4}}},
      {.slices = {{.parameter = 3, .count = 1}}, .trainable = false},
      {.slices = {{.parameter = 4, .count = 1}}}};
}

TEST(PartitionScheduleTest, APartitionLeavesWithTheLastOfItsParameters) {
  PartitionSchedule schedule(Example(), 5, {});
  EXPECT_THAT(schedule.Finish(1), IsEmpty());
  EXPECT_THAT(schedule.Finish(2), ElementsAre(1, 2));
  EXPECT_TRUE(schedule.IsFinal(1));
  EXPECT_FALSE(schedule.IsFinal(0));
  EXPECT_THAT(schedule.Finish(0), ElementsAre(0));
  EXPECT_THAT(schedule.Rest(), ElementsAre(4));
}

TEST(PartitionScheduleTest, PartitionsWaitForTheirTurn) {
  PartitionSchedule schedule(Example(), 5, {4, 2, 1, 0});
  EXPECT_THAT(schedule.Finish(2), IsEmpty());
  EXPECT_THAT(schedule.Finish(4), ElementsAre(4, 2, 1));
  EXPECT_THAT(schedule.Finish(0), IsEmpty());
  EXPECT_THAT(schedule.Finish(1), ElementsAre(0));
  EXPECT_THAT(schedule.Rest(), IsEmpty());
}

TEST(PartitionScheduleTest, WhatNoPassCompletesIsNotWaitedForAgain) {
  PartitionSchedule schedule(Example(), 5, {4, 2, 1, 0});
  EXPECT_THAT(schedule.Finish(2), IsEmpty());
  EXPECT_THAT(schedule.Rest(), ElementsAre(4, 2, 1, 0));
  schedule.Begin();
  EXPECT_THAT(schedule.Finish(2), ElementsAre(2, 1));
  EXPECT_THAT(schedule.Finish(4), ElementsAre(4));
}

}  // namespace
}  // namespace cohort
