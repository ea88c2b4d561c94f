#include "server/core/policy/statistics_agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/fakes/statuses.h"

namespace cohort {
namespace {

using Changes = std::vector<LayerChanges>;

const std::vector<BatchNormSpec> kLayers = {{.name = "bn1", .channels = 1},
                                            {.name = "bn2", .channels = 1}};

TrainingCall Call(int32_t number, double momentum = 0.1) {
  return {.call = number, .momentum = momentum, .epsilon = 1e-5};
}

StatisticsWrite Write(int32_t after, double mean) {
  return {
      .after_calls = after,
      .values = {.mean = {mean}, .variance = {1}, .num_batches_tracked = 0}};
}

absl::StatusOr<Changes> Agree(const std::vector<Changes>& by_rank) {
  std::vector<MemberChanges> members;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    members.push_back(
        {.rank = Rank(static_cast<int32_t>(rank)), .changes = &by_rank[rank]});
  }
  return AgreeOnChanges(members, kLayers);
}

void ExpectDissent(const std::vector<Changes>& by_rank,
                   const std::string& text) {
  EXPECT_THAT(Agree(by_rank), IsError(kFailedPrecondition, text));
}

TEST(StatisticsAgreementTest, WorkersThatSayNothingUseTheRegisteredValues) {
  EXPECT_EQ(*Agree({{}, {}}), Changes());
}

TEST(StatisticsAgreementTest, EqualChangesAreTheSteps) {
  const Changes one = {{.layer = 1,
                        .calls = {Call(0, 0.1), Call(1, 0.3)},
                        .writes = {Write(1, 4)}}};
  EXPECT_EQ(*Agree({one, one, one}), one);
}

TEST(StatisticsAgreementTest, OneThatSkippedALayerFollowsTheOthers) {
  const Changes made = {{.layer = 0, .calls = {Call(0)}},
                        {.layer = 1, .calls = {Call(0)}}};
  const Changes skipped = {{.layer = 0, .calls = {Call(0)}}};
  EXPECT_EQ(*Agree({skipped, made}), made);
  EXPECT_EQ(*Agree({made, skipped}), made);
}

TEST(StatisticsAgreementTest, NamedCallsMayBeSkippedOneByOne) {
  TrainingCall a = Call(0);
  a.site = "a";
  TrainingCall b = Call(0);
  b.site = "b";
  const Changes both = {{.layer = 0, .calls = {a, b}}};
  EXPECT_EQ(*Agree({{{.layer = 0, .calls = {b}}}, both}), both);
  ExpectDissent({{{.layer = 0, .calls = {b, a}}}, both}, "bn1: rank 0");
}

TEST(StatisticsAgreementTest, AnotherMomentumOrEpsilonIsNamed) {
  ExpectDissent({{{.layer = 0, .calls = {Call(0, 0.1)}}},
                 {{.layer = 0, .calls = {Call(0, 0.2)}}}},
                "bn1: rank 0 has momentum 0.1, eps 1e-05, rank 1 has momentum "
                "0.2");
  TrainingCall other = Call(0);
  other.epsilon = 0.5;
  ExpectDissent(
      {{{.layer = 1, .calls = {Call(0)}}}, {{.layer = 1, .calls = {other}}}},
      "bn2: rank 0");
}

TEST(StatisticsAgreementTest, WrittenValuesMustBeEqual) {
  ExpectDissent({{{.layer = 0, .writes = {Write(0, 1)}}},
                 {{.layer = 0, .writes = {Write(0, 2)}}}},
                "other values");
  // One worker alone has written.
  ExpectDissent({{{.layer = 0, .calls = {Call(0)}}},
                 {{.layer = 0, .calls = {Call(0)}, .writes = {Write(1, 2)}}}},
                "bn1: rank 0");
}

TEST(StatisticsAgreementTest, ReadsAfterDifferentNumbersOfCallsAreRefused) {
  const auto reads = [](std::vector<int32_t> after) {
    return Changes{{.layer = 0, .calls = {Call(0)}, .reads = after}};
  };
  EXPECT_TRUE(Agree({reads({0}), reads({0})}).ok());
  EXPECT_TRUE(Agree({reads({0, 1}), reads({1})}).ok());
  EXPECT_TRUE(Agree({reads({1}), reads({})}).ok());
  ExpectDissent({reads({0}), reads({1})}, "bn1: rank 0");
}

TEST(StatisticsAgreementTest, AReadOfOneThatMadeNoneOfTheCallsIsRefused) {
  const Changes made = {{.layer = 0, .calls = {Call(0)}}};
  const Changes read = {{.layer = 0, .reads = {0}}};
  ExpectDissent({made, read}, "bn1: rank 0");
  // No member made a call: the statistics are those of the version.
  EXPECT_EQ(*Agree({read, read}), Changes());
}

}  // namespace
}  // namespace cohort
