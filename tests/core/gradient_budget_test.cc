#include "server/core/ledger/gradient_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using testing::HasSubstr;

constexpr Rank kFirst{0};
constexpr Rank kSecond{1};
constexpr Rank kThird{2};

TEST(GradientBudgetTest, MessagesAreChargedAndReleased) {
  GradientBudget budget(100);
  EXPECT_TRUE(budget.Fits(100));
  budget.Charge(60);
  EXPECT_FALSE(budget.Fits(41));
  EXPECT_TRUE(budget.Fits(40));
  // The caller may charge over the limit.
  budget.Charge(60);
  EXPECT_EQ(budget.inflight_bytes(), 120);
  EXPECT_FALSE(budget.Fits(1));
  budget.Release(120);
  EXPECT_EQ(budget.inflight_bytes(), 0);
}

TEST(GradientBudgetTest, FoldsHoldTheirBytesUntilTheyEnd) {
  GradientBudget budget(100);
  budget.Charge(80);
  budget.BeginFold(80);
  EXPECT_TRUE(budget.folding());
  EXPECT_EQ(budget.inflight_bytes(), 80);
  budget.EndFold(80);
  EXPECT_FALSE(budget.folding());
  EXPECT_EQ(budget.inflight_bytes(), 0);
}

TEST(GradientBudgetTest, ReservationsAreGrantedInOrderOfTheirComing) {
  GradientBudget budget(100);
  budget.Reserve(kFirst, 60);
  budget.Reserve(kSecond, 60);
  // It would fit, but another reservation came first.
  budget.Reserve(kThird, 40);
  EXPECT_TRUE(budget.HasReserved(kFirst));
  EXPECT_FALSE(budget.HasReserved(kSecond));
  EXPECT_FALSE(budget.HasReserved(kThird));
  EXPECT_EQ(budget.inflight_bytes(), 60);
  budget.Unreserve(kFirst);
  EXPECT_TRUE(budget.HasReserved(kSecond));
  EXPECT_TRUE(budget.HasReserved(kThird));
  EXPECT_EQ(budget.inflight_bytes(), 100);
}

TEST(GradientBudgetTest, ReservationGivenBackWhileItWaitsIsForgotten) {
  GradientBudget budget(100);
  budget.Reserve(kFirst, 100);
  budget.Reserve(kSecond, 100);
  budget.Reserve(kSecond, 100);
  budget.Unreserve(kSecond);
  budget.Unreserve(kFirst);
  EXPECT_FALSE(budget.HasReserved(kSecond));
  EXPECT_EQ(budget.inflight_bytes(), 0);
}

ModelLayout TenFloats() {
  return {.parameters = {{.name = "w", .shape = {6}},
                         {.name = "v", .shape = {4}},
                         {.name = "frozen", .shape = {9}, .trainable = false}}};
}

TEST(CheckInflightTest, StepOfAllMembersNeedsNoRoomForItself) {
  CoordinatorOptions options{.workers = 3, .inflight_bytes_max = 1};
  EXPECT_TRUE(CheckInflight(options, TenFloats()).ok());
}

TEST(CheckInflightTest, OnePushMustFitWherePushesAreAppliedAlone) {
  CoordinatorOptions options{.policy = {.aggregation = AggregationKind::kAsync},
                             .inflight_bytes_max = 40};
  EXPECT_TRUE(CheckInflight(options, TenFloats()).ok());
  options.inflight_bytes_max = 39;
  const absl::Status status = CheckInflight(options, TenFloats());
  EXPECT_THAT(status,
              IsError(kFailedPrecondition, "--inflight_mib: got 39 bytes"));
  EXPECT_THAT(status.message(), HasSubstr("want at least 1 x 40"));
}

TEST(CheckInflightTest, FirstPushesOfAStepMustFitTogether) {
  CoordinatorOptions options{
      .workers = 3, .policy = {.pushes_min = 2}, .inflight_bytes_max = 80};
  EXPECT_TRUE(CheckInflight(options, TenFloats()).ok());
  options.inflight_bytes_max = 79;
  EXPECT_FALSE(CheckInflight(options, TenFloats()).ok());
  // Moments fix the members before gradients come.
  ModelLayout normalised = TenFloats();
  normalised.batch_norms = {{.name = "bn", .channels = 2}};
  EXPECT_TRUE(CheckInflight(options, normalised).ok());
  options.policy.normalization = NormalizationKind::kLocal;
  EXPECT_FALSE(CheckInflight(options, normalised).ok());
  options.policy.pushes_min = 3;
  EXPECT_TRUE(CheckInflight(options, normalised).ok());
}

}  // namespace
}  // namespace cohort
