#include "server/core/policy/call_agreement.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace cohort {
namespace {

constexpr Rank kA{0};
constexpr Rank kB{1};
constexpr Rank kC{2};
constexpr Rank kD{3};

const std::vector<int32_t> kNone = {0, 0};
const std::vector<int32_t> kOnce = {1, 1};
const std::vector<int32_t> kTwice = {1, 2};
const std::vector<BatchNormSpec> kLayers = {{.name = "bn"}, {.name = "bn2"}};

MemberCalls Closed(Rank rank, const std::vector<int32_t>& calls,
                   std::vector<CallPlace> lacks = {}, size_t group = 0) {
  return {.rank = rank, .group = group, .closed = &calls, .lacks = lacks};
}

MemberCalls Waiting(Rank rank, std::vector<CallPlace> waits, size_t group = 0) {
  return {.rank = rank, .group = group, .waits = waits};
}

std::optional<CallDissent> Dissent(const std::vector<MemberCalls>& members,
                                   bool crossed = false) {
  return FindCallDissent(members, kLayers, Version(7), crossed);
}

TEST(CallAgreementTest, EqualCountsAgree) {
  EXPECT_EQ(Dissent({Closed(kA, kOnce), Closed(kB, kOnce)}), std::nullopt);
  EXPECT_EQ(Dissent({}), std::nullopt);
}

TEST(CallAgreementTest, OfTwoThatDifferNeitherIsAlone) {
  const auto dissent = Dissent({Closed(kA, kOnce), Closed(kB, kTwice)});
  ASSERT_TRUE(dissent.has_value());
  EXPECT_EQ(dissent->alone, std::nullopt);
  EXPECT_EQ(dissent->text, "bn2: rank 1 made 2 calls in step 7, rank 0 made 1");
}

TEST(CallAgreementTest, AgainstTwoThatAgreeAMemberIsAlone) {
  const auto dissent =
      Dissent({Closed(kA, kTwice), Closed(kB, kOnce), Closed(kC, kOnce)});
  ASSERT_TRUE(dissent.has_value());
  EXPECT_EQ(dissent->alone, kA);
  EXPECT_EQ(dissent->text, "bn2: rank 0 made 2 calls in step 7, rank 1 made 1");
}

TEST(CallAgreementTest, ThreeThatAllDifferHaveNoMajority) {
  const auto dissent =
      Dissent({Closed(kA, kTwice), Closed(kB, kOnce), Closed(kC, kNone)});
  ASSERT_TRUE(dissent.has_value());
  EXPECT_EQ(dissent->alone, std::nullopt);
}

TEST(CallAgreementTest, TwoAgainstTwoHaveNoMajority) {
  const auto dissent = Dissent({Closed(kA, kTwice), Closed(kB, kOnce),
                                Closed(kC, kTwice), Closed(kD, kOnce)});
  ASSERT_TRUE(dissent.has_value());
  EXPECT_EQ(dissent->alone, std::nullopt);
}

// A waits in a second call, the others are done after one.
TEST(CallAgreementTest, OneThatWaitsInACallTooManyIsAlone) {
  const CallPlace extra{.layer = 0, .call = 1};
  const auto dissent =
      Dissent({Waiting(kA, {extra}), Closed(kB, kOnce, {extra}),
               Closed(kC, kOnce, {extra})});
  ASSERT_TRUE(dissent.has_value());
  EXPECT_EQ(dissent->alone, kA);
  EXPECT_EQ(dissent->text,
            "bn: rank 0 waits in call 1 of step 7, but rank 1 has closed its "
            "push without this call");
}

// B's sibling contribution has arrived; C's is still on its way.
TEST(CallAgreementTest, WhoWaitsInOneOfTwoSiblingsAgreesWithWhoWaitsInBoth) {
  const CallPlace bn{.layer = 0};
  const CallPlace bn2{.layer = 1};
  const auto dissent = Dissent({Closed(kA, kNone, {bn, bn2}),
                                Waiting(kB, {bn, bn2}), Waiting(kC, {bn2})},
                               /*crossed=*/true);
  ASSERT_TRUE(dissent.has_value());
  EXPECT_EQ(dissent->alone, kA);
}

TEST(CallAgreementTest, CrossedCallsCountOnlyWhenToldSo) {
  const std::vector<MemberCalls> members = {Waiting(kA, {{.layer = 0}}),
                                            Waiting(kB, {{.layer = 1}}),
                                            Waiting(kC, {{.layer = 0}})};
  EXPECT_EQ(Dissent(members), std::nullopt);
  const auto dissent = Dissent(members, /*crossed=*/true);
  ASSERT_TRUE(dissent.has_value());
  EXPECT_EQ(dissent->alone, kB);
  EXPECT_EQ(dissent->text,
            "the members of step 7 wait for each other: rank 0 in call 0 of "
            "bn, rank 1 in call 0 of bn2, rank 2 in call 0 of bn");
}

// Members of different groups share no rendezvous.
TEST(CallAgreementTest, GroupsMayWaitInDifferentCalls) {
  EXPECT_EQ(Dissent({Waiting(kA, {{.layer = 0}}),
                     Waiting(kB, {{.layer = 1}}, /*group=*/1)},
                    /*crossed=*/true),
            std::nullopt);
  // A later call than any that the members of another group made.
  EXPECT_TRUE(Dissent({Waiting(kA, {{.layer = 0, .call = 1}}),
                       Closed(kB, kOnce, {}, /*group=*/1)})
                  .has_value());
  EXPECT_EQ(Dissent({Waiting(kA, {{.layer = 0}}),
                     Closed(kB, kOnce, {}, /*group=*/1)}),
            std::nullopt);
}

}  // namespace
}  // namespace cohort
