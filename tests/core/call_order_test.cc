#include "server/core/policy/call_order.h"

#include <gtest/gtest.h>

#include <vector>

namespace cohort {
namespace {

const CallPlace kA{.layer = 0};
const CallPlace kB{.layer = 1};
const CallPlace kC{.layer = 2};
const CallPlace kD{.layer = 3};

using Sequences = std::vector<std::vector<CallPlace>>;

TEST(CallOrderTest, WithoutKnowledgeTheFirstRegisteredComesFirst) {
  CallOrder order;
  EXPECT_EQ(order.First({kA, kB}), 0);
  EXPECT_EQ(order.First({kB}), 0);
}

TEST(CallOrderTest, WhatMembersHaveShownDecides) {
  CallOrder order;
  EXPECT_TRUE(order.Learn(Sequences{{kC, kB}, {kB, kA}}, Version(1)));
  EXPECT_EQ(order.First({kA, kB}), 1);
  // Over a path, too.
  EXPECT_EQ(order.First({kA, kC}), 1);
  EXPECT_EQ(order.First({kA, kB, kC}), 2);
  // Nothing is known of the last.
  EXPECT_EQ(order.First({kA, kD}), 0);
}

TEST(CallOrderTest, ARepetitionThatShowsNothingNewSaysSo) {
  CallOrder order;
  EXPECT_TRUE(order.Learn(Sequences{{kA, kB}}, Version(1)));
  EXPECT_FALSE(order.Learn(Sequences{{kA, kB}, {kA}}, Version(1)));
  EXPECT_TRUE(order.Learn(Sequences{{kB, kA}}, Version(1)));
  // Both orders are known, so neither decides.
  EXPECT_EQ(order.First({kA, kB}), 0);
  EXPECT_EQ(order.First({kB, kA}), 0);
}

TEST(CallOrderTest, ThePresentStepOutweighsEarlierOnes) {
  CallOrder order;
  order.Learn(Sequences{{kB, kA}, {kB, kC}}, Version(1));
  EXPECT_TRUE(order.Learn(Sequences{{kA, kB}}, Version(2)));
  EXPECT_EQ(order.First({kA, kB}), 0);
  EXPECT_EQ(order.First({kB, kA}), 1);
  // The present step says nothing of these.
  EXPECT_EQ(order.First({kC, kB}), 1);
}

// Of steps 1 and 2, the later one counts.
TEST(CallOrderTest, OfEarlierStepsTheLastOneDecides) {
  CallOrder order;
  order.Learn(Sequences{{kA, kB}, {kB, kC}}, Version(1));
  order.Learn(Sequences{{kC, kB}}, Version(2));
  order.Learn(Sequences{{kD, kA}}, Version(3));
  EXPECT_EQ(order.First({kB, kC}), 1);
  EXPECT_EQ(order.First({kB, kA}), 1);
  EXPECT_EQ(order.state().old,
            (std::vector<CallOrder::Edge>{{kC, kB}, {kA, kB}}));
}

TEST(CallOrderTest, ALongCycleOfEarlierStepsIsBroken) {
  CallOrder order;
  order.Learn(Sequences{{kA, kB}, {kC, kA}}, Version(1));
  order.Learn(Sequences{{kB, kD}, {kD, kC}}, Version(2));
  order.Learn(Sequences{{kD}}, Version(3));
  // A, B, D, C and back to A: the edge that comes last is left out.
  EXPECT_EQ(order.state().old,
            (std::vector<CallOrder::Edge>{{kB, kD}, {kD, kC}, {kA, kB}}));
}

TEST(CallOrderTest, ItsStateGoesOnAsIfNothingHadHappened) {
  CallOrder order;
  order.Learn(Sequences{{kC, kB}, {kB, kA}}, Version(1));
  order.Learn(Sequences{{kA, kD}}, Version(2));
  CallOrder again(order.state());
  EXPECT_EQ(again.state(), order.state());
  EXPECT_FALSE(again.Learn(Sequences{{kA, kD}}, Version(2)));
  EXPECT_EQ(again.First({kA, kC}), 1);
}

}  // namespace
}  // namespace cohort
