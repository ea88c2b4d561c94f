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

class CallOrderTest : public testing::Test {
 protected:
  CallOrder order_;
};

TEST_F(CallOrderTest, WithoutKnowledgeTheFirstRegisteredComesFirst) {
  EXPECT_EQ(order_.First({kA, kB}), 0);
  EXPECT_EQ(order_.First({kB}), 0);
}

TEST_F(CallOrderTest, WhatMembersHaveShownDecides) {
  EXPECT_TRUE(order_.Learn(Sequences{{kC, kB}, {kB, kA}}, Version(1)));
  EXPECT_EQ(order_.First({kA, kB}), 1);
  // Over a path, too.
  EXPECT_EQ(order_.First({kA, kC}), 1);
  EXPECT_EQ(order_.First({kA, kB, kC}), 2);
  // Nothing is known of the last.
  EXPECT_EQ(order_.First({kA, kD}), 0);
}

TEST_F(CallOrderTest, ARepetitionThatShowsNothingNewSaysSo) {
  EXPECT_TRUE(order_.Learn(Sequences{{kA, kB}}, Version(1)));
  EXPECT_FALSE(order_.Learn(Sequences{{kA, kB}, {kA}}, Version(1)));
  EXPECT_TRUE(order_.Learn(Sequences{{kB, kA}}, Version(1)));
  // Both orders are known, so neither decides.
  EXPECT_EQ(order_.First({kA, kB}), 0);
  EXPECT_EQ(order_.First({kB, kA}), 0);
}

TEST_F(CallOrderTest, ThePresentStepOutweighsEarlierOnes) {
  order_.Learn(Sequences{{kB, kA}, {kB, kC}}, Version(1));
  EXPECT_TRUE(order_.Learn(Sequences{{kA, kB}}, Version(2)));
  EXPECT_EQ(order_.First({kA, kB}), 0);
  EXPECT_EQ(order_.First({kB, kA}), 1);
  // The present step says nothing of these.
  EXPECT_EQ(order_.First({kC, kB}), 1);
}

// Of steps 1 and 2, the later one counts.
TEST_F(CallOrderTest, OfEarlierStepsTheLastOneDecides) {
  order_.Learn(Sequences{{kA, kB}, {kB, kC}}, Version(1));
  order_.Learn(Sequences{{kC, kB}}, Version(2));
  order_.Learn(Sequences{{kD, kA}}, Version(3));
  EXPECT_EQ(order_.First({kB, kC}), 1);
  EXPECT_EQ(order_.First({kB, kA}), 1);
  EXPECT_EQ(order_.state().old,
            (std::vector<CallOrder::Edge>{{kC, kB}, {kA, kB}}));
}

TEST_F(CallOrderTest, ALongCycleOfEarlierStepsIsBroken) {
  order_.Learn(Sequences{{kA, kB}, {kC, kA}}, Version(1));
  order_.Learn(Sequences{{kB, kD}, {kD, kC}}, Version(2));
  order_.Learn(Sequences{{kD}}, Version(3));
  // A, B, D, C and back to A: the edge that comes last is left out.
  EXPECT_EQ(order_.state().old,
            (std::vector<CallOrder::Edge>{{kB, kD}, {kD, kC}, {kA, kB}}));
}

TEST_F(CallOrderTest, ItsStateGoesOnAsIfNothingHadHappened) {
  order_.Learn(Sequences{{kC, kB}, {kB, kA}}, Version(1));
  order_.Learn(Sequences{{kA, kD}}, Version(2));
  CallOrder again(order_.state());
  EXPECT_EQ(again.state(), order_.state());
  EXPECT_FALSE(again.Learn(Sequences{{kA, kD}}, Version(2)));
  EXPECT_EQ(again.First({kA, kC}), 1);
}

}  // namespace
}  // namespace cohort
