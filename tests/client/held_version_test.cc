#include "worker/client/held_version.h"

#include <gtest/gtest.h>

#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

const Incarnation kFirst(1);

Assignment Of(AssignmentKind kind, int64_t version,
              const std::string& statistics = "") {
  Assignment assignment;
  assignment.kind = kind;
  assignment.version = Version(version);
  assignment.members = {Rank(0)};
  assignment.statistics = statistics;
  return assignment;
}

TEST(HeldVersionTest, AnotherVersionOrIncarnationIsMissing) {
  HeldVersion held(kFirst);
  const Assignment train = Of(AssignmentKind::kTrain, 3);
  PullOptions missing = OkValue(held.MissingFor(train, kFirst));
  EXPECT_EQ(missing.version, Version(3));
  held.Hold(Version(3));
  EXPECT_FALSE(held.MissingFor(train, kFirst).has_value());
  EXPECT_TRUE(
      held.MissingFor(Of(AssignmentKind::kTrain, 4), kFirst).has_value());
  EXPECT_TRUE(held.MissingFor(train, Incarnation(2)).has_value());
}

TEST(HeldVersionTest, WeightsThatUpdatesHaveChangedAreMissing) {
  HeldVersion held(kFirst);
  const Assignment train = Of(AssignmentKind::kTrain, 3);
  held.Hold(Version(3));
  held.Draft();
  EXPECT_EQ(held.version(), Version(3));
  EXPECT_EQ(OkValue(held.MissingFor(train, kFirst)).version, Version(3));
  held.Hold(Version(3));
  EXPECT_FALSE(held.MissingFor(train, kFirst).has_value());
}

TEST(HeldVersionTest, TheAverageOfAVersionIsNotTheVersion) {
  HeldVersion held(kFirst);
  held.Hold(Version(3));
  const Assignment average =
      Of(AssignmentKind::kEvaluate, 3, kAverageStatistics);
  const PullOptions missing = OkValue(held.MissingFor(average, kFirst));
  EXPECT_TRUE(missing.weights);
  EXPECT_EQ(missing.version, Version(3));
  EXPECT_EQ(missing.statistics_kind, kAverageStatistics);
  held.Hold(Version(3), missing);
  EXPECT_FALSE(held.MissingFor(average, kFirst).has_value());
  const Assignment plain = Of(AssignmentKind::kEvaluate, 3, "sync");
  const PullOptions back = OkValue(held.MissingFor(plain, kFirst));
  EXPECT_EQ(back.statistics_kind, "");
  EXPECT_TRUE(
      held.MissingFor(Of(AssignmentKind::kTrain, 3), kFirst).has_value());
}

}  // namespace
}  // namespace cohort
